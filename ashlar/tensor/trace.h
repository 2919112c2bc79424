// The trace of one rank: its events in order.  Events are the kernels that it runs, the operations
// that it posts to its groups, its waits for them, and the times when its lanes (comm/group.h) ran
// them.  A real run and a dry run have the same trace, except for times.
//
//   kind     when                      holds
//   kKernel  a kernel                  name, dtype, flop, bytes; dims; varies, count; num_launches
//   kPost    an operation is submitted name, label, group, lane, ticket, number, dtype, root,
//                                      bytes; messages
//   kWait    Work::wait                lane, ticket
//   kBegan   the operation begins      group, lane, ticket
//   kEnded   it has ended              group, lane, ticket; bytes sent and received; count: rounds
//
// The rank's thread writes the first three kinds into one list, with the place in the step.  The
// thread of a lane writes kBegan and kEnded into the lane's own list; lane and ticket identify
// their post.  A wait whose ticket has no post waits for an operation that was posted before
// recording began.  A group of one rank has lane -1: its posts end at once, and nobody waits for
// them.
//
// Times    seconds of the machine's steady clock.  start_s to end_s is the call: a kernel from its
//          record to its return, a post until it is queued, a wait as long as it blocked.  kBegan
//          and kEnded are moments: both times are equal.  A device that works behind the host has
//          times of its own for kernels (DeviceSpan).
// Place    kept whether the trace is recording or not.
// Threads  each list has one writer and no lock.  Recording starts and stops, and lists are read,
//          on the rank's thread, after everything that was recorded has ended.  Any thread may read
//          the place.
// Memory   104 bytes an event, 16 a message, 16 the dims of a kernel and 24 its span on a device,
//          outside of every Allocator.
//          A list with a fixed capacity allocates nothing; events that do not fit are dropped and
//          counted.  The first use of a name, a group or a list of chunks takes a few bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/pulse.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar {

// A position in a step.
struct TracePlace {
  enum class Branch : uint8_t { kNone, kMixer, kFeedForward };
  int32_t micro_batch = -1;  // number within the rank's step; -1: none
  int16_t block = -1;        // -1: none
  uint8_t phase = 0;         // Trace::phase gives its name
  Branch branch = Branch::kNone;
  bool operator==(const TracePlace&) const = default;
};

struct TraceEvent {
  enum class Kind : uint8_t { kKernel, kPost, kWait, kBegan, kEnded };
  // The quantity that flop and bytes are proportional to, if it depends on the data: rows that
  // experts get, pairs of a query and a key that attention sees.  `count` is the number assumed.
  enum class Varies : uint8_t { kNo, kExpertRows, kVisiblePairs };
  Kind kind = Kind::kKernel;
  Varies varies = Varies::kNo;
  DType dtype = DType::kU8;  // of a product's operands; of the stream or the payload otherwise
  TracePlace place{};
  int16_t name = 0, label = 0;  // in Trace::text; a kernel's, or a collective's ("all_reduce")
  int16_t group = -1, lane = -1;
  int32_t root = -1;                      // of broadcast and reduce: a rank of the group
  int32_t num_launches = 0;               // of a kernel on a GPU, and products of its library
  int32_t first_item = 0, num_items = 0;  // in Trace::dims (kernels) or messages (posts)
  int64_t number = -1;  // of the collective in its group; -1: send_receive, matched by pairs
  int64_t ticket = 0;   // counts the operations of a lane, from 1
  int64_t flop = 0;
  // kPost: the whole array, S in comm/group.h; kEnded: bytes sent.
  int64_t bytes = 0, received_bytes = 0;
  int64_t count = 0;  // see Varies; kEnded: the operation's rounds (comm/rounds_of.h)
  double start_s = 0, end_s = 0;
};
static_assert(sizeof(TraceEvent) <= 104 && std::atomic<TracePlace>::is_always_lock_free);

// Extents that the time of a kernel depends on; docs/formats/trace.md lists them for each kernel.
// All 0: not recorded.
struct TraceDims {
  int32_t groups = 0, rows = 0, cols = 0, depth = 0;
  bool operator==(const TraceDims&) const = default;
};

// A message that a send_receive, or an all_to_all with counts, sends to a rank or expects from it.
// An all_gather or reduce_scatter with uneven counts has one message for the chunk of each rank of
// the group, in their order; there `sends` is false.  Equal lists of chunks are stored once: of
// 16,384 ranks, those of every operation would take 560 MB a step.
struct TraceMessage {
  int32_t rank = 0;  // of the world
  bool sends = false;
  int64_t bytes = 0;
  bool operator==(const TraceMessage&) const = default;
};

struct TraceGroup {
  std::string name;
  std::vector<int> world_ranks;
  int lane = -1;
};

// When a device ran a kernel, in the clock of the events.
struct DeviceSpan {
  int64_t event = -1;  // number of the kernel in Trace::events
  double start_s = 0, end_s = 0;
};

// The moments of a device that works behind the host.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual void mark() = 0;  // the moment when the device has run all that it was given so far
  // The moments marked since the last call, in order, as Trace::now_s counts.  Waits for them.
  virtual std::vector<double> read() = 0;
};

// Capacities: events of the rank, events of each of its lanes, messages, dims of kernels.
struct TraceRoom {
  int64_t events = 0, lane_events = 0, messages = 0, dims = 0;
  bool operator==(const TraceRoom&) const = default;
};

class Trace {
 public:
  // Records the end of an event when it is destroyed.
  class [[nodiscard]] Scope {
   public:
    Scope() = default;  // of no event
    Scope(Trace& trace, int64_t event) : trace_(&trace), event_(event) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (trace_) trace_->end(event_);
    }

   private:
    Trace* trace_ = nullptr;
    int64_t event_ = -1;
  };

  Trace() = default;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Continues behind the events recorded so far.  room: the capacity for events from now on, taken
  // here.  Without it lists grow, and then no lane may have a thread.
  void start(std::optional<TraceRoom> room = {});
  void stop() { recording_ = false; }
  void resume() { recording_ = true; }  // in the capacity that start took
  void clear();                         // the lists; names, groups, place and memory stay
  void release();                       // as clear, and releases the memory; stops first
  bool recording() const { return recording_; }

  static double now_s();  // the clock of events

  // From now on kernels also have spans on this device; null: they have none.
  void follow(DeviceClock* device) { device_ = device; }
  // Completes device_spans with the kernels that have ended.
  void read_device();

  // From now on this page shows the rank's place, and comm the operations of its groups.
  void show_in(std::unique_ptr<PulseWriter> pulse) { pulse_ = std::move(pulse); }
  PulseWriter* pulse() const { return pulse_.get(); }  // null: none

  // --- the place; on the rank's thread, recording or not ---

  void enter(std::string_view phase, int64_t block);
  void enter(TracePlace::Branch branch);
  void enter_micro_batch(int64_t number);
  void enter(const TracePlace& place);

  // --- writing; where the trace is recording ---

  // Adds an event of the rank's thread at the present place and time.  -1: it was dropped.
  int64_t begin(TraceEvent event);
  void end(int64_t event);
  // Counts launches of the kernel that has begun and not ended, if there is one.
  void count_launches(int count) {
    if (open_kernel_ >= 0) events_.list[size_t(open_kernel_)].num_launches += count;
  }
  void set_ticket(int64_t event, int64_t ticket);
  // Adds a message of the event that was added last.
  void add_message(int64_t event, const TraceMessage& message);
  // Adds the chunks of all ranks of the group of the event that was added last, in bytes:
  // counts[r] * bytes_each.
  void add_chunks(int64_t event, std::span<const int64_t> counts, int64_t bytes_each);
  // Adds the dims of the event that was added last, a kernel's.
  void add_dims(int64_t event, const TraceDims& dims);
  // Adds kBegan or kEnded; on the lane's thread.
  void add_to_lane(TraceEvent event);

  int16_t index_of(std::string_view text);
  int16_t add_lane(std::string name, bool has_thread);  // while nothing is recorded
  int16_t add_group(TraceGroup group);

  // --- reading ---

  std::span<const TraceEvent> events() const { return events_.list; }
  std::span<const DeviceSpan> device_spans() const { return spans_; }
  std::span<const TraceEvent> lane_events(int lane) const { return lanes_[size_t(lane)]->list; }
  std::span<const TraceMessage> messages(const TraceEvent& event) const {
    return std::span(messages_.list).subspan(size_t(event.first_item), size_t(event.num_items));
  }
  TraceDims dims(const TraceEvent& kernel) const {
    return kernel.num_items > 0 ? dims_.list[size_t(kernel.first_item)] : TraceDims{};
  }
  std::string_view text(int16_t index) const { return texts_[size_t(index)]; }
  std::string_view phase(const TracePlace& place) const { return text(phases_[place.phase]); }
  TracePlace place() const { return place_.load(std::memory_order_relaxed); }  // from any thread
  const TraceGroup& group(int16_t index) const { return groups_[size_t(index)]; }
  std::span<const TraceGroup> groups() const { return groups_; }
  int num_lanes() const { return int(lanes_.size()); }
  const std::string& lane_name(int lane) const { return lanes_[size_t(lane)]->name; }
  int64_t num_dropped() const;  // events, messages and dims, since the last clear
  TraceRoom size() const;       // of what is recorded

 private:
  template <typename Item>
  struct List {
    std::vector<Item> list;
    size_t capacity = SIZE_MAX;
    int64_t num_dropped = 0;
    int64_t add(const Item& item);  // -1: it was dropped
    void make_room(std::optional<int64_t> more);
    void clear();
    int64_t size() const { return int64_t(list.size()); }
  };
  struct Lane : List<TraceEvent> {
    std::string name;
    bool has_thread = false;
  };

  bool recording_ = false;
  std::atomic<TracePlace> place_{TracePlace{}};
  List<TraceEvent> events_;
  List<TraceMessage> messages_;
  List<TraceDims> dims_;
  std::map<uint64_t, int32_t> chunk_lists_;   // by their hash, the first message of each
  std::vector<std::unique_ptr<Lane>> lanes_;  // they keep their addresses
  std::vector<TraceGroup> groups_;
  std::map<std::string, int16_t, std::less<>> index_of_text_{{"", 0}};
  std::vector<std::string_view> texts_{""};  // the keys of index_of_text_
  std::vector<int16_t> phases_{0};
  std::vector<std::optional<PulsePlace>> pulse_places_{std::nullopt};  // of phases_
  std::unique_ptr<PulseWriter> pulse_;
  int64_t open_kernel_ = -1;  // which has begun and not ended; kernels call no kernels
  DeviceClock* device_ = nullptr;
  std::vector<DeviceSpan> spans_;
  size_t num_read_ = 0;  // of spans_, the first of which have times
};

}  // namespace ashlar
