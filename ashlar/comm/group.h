// A group of ranks that run collectives together.
//
// Order    all operations of all groups have one order, and every rank submits the operations that
//          it takes part in in that order (one program).  Headers that travel with the data check
//          op, label, number, type, length and sizes.
// Lanes    the operations of all groups on one lane run one after the other.  Lanes do not wait for
//          each other, so that an urgent operation need not queue behind bulk that nobody waits
//          for.  A lane is a name given to split; the world's lane is "world".  It gets its own
//          thread and staging memory with the first group of two ranks or more that uses it.
// Sums     element by element, rank 0 + rank 1 + ... in group order: the same bits on every engine
//          and every rank, for any timing.  bf16 is summed in fp32 and rounded once; integers wrap.
//          Native collectives (world.h) sum in an order of their own.
// Overlap  a call queues the operation and returns; the communication thread of the lane runs the
//          queue in order.  Until the Work is done, tensors must stay, inputs must not be written,
//          outputs must not be read, and lists of transfers must stay; counts are copied.  One
//          thread of a rank submits.  A group of one rank copies at once.
// Memory   a repeated call allocates nothing.  Sums of any length go in slices through the staging
//          memory of the lane (world.h).
// Errors   kComm from Work::wait if a rank has failed, did not arrive in time or called something
//          else; the message names op, label and ranks (their numbers in the world).  After it no
//          operation works, on any lane.
//
// Traffic of rank r of n, in bytes of payload.  S: bytes of the whole array; c_r: bytes of its r-th
// chunk [floor(N r / n), floor(N (r+1) / n)), or of the given counts; d_j: of the j-th chunk when S
// is cut over the n-1 ranks that are not the root.  Where n divides N the sums are the ring's:
// (n-1)/n S, and twice that for all_reduce.
//
//   op              sent                          received
//   reduce_scatter  S - c_r                       (n-1) c_r
//   all_gather      (n-1) c_r                     S - c_r
//   all_reduce      S + (n-2) c_r                 S + (n-2) c_r
//   reduce          S (root: S - c_r)             (n-1) c_r (root: S - c_r more)
//   broadcast       root S, others (n-2) d_j      S (root 0)
//   all_to_all      all that goes to others       all that comes from others
//   send_receive    the same                      the same
//   barrier         0                             0
//
// rounds_of.h gives the number of rounds.  A round also exchanges a header of 128 bytes with each
// partner, so the latency grows with n.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ashlar/comm/operation.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/tensor/tensor.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::comm {

struct World;
struct Lane;
struct Moved;
class Runner;

// An operation in flight.  The destructor waits until its tensors are free again; while an
// exception unwinds, it first cancels all that this rank has queued.
class [[nodiscard]] Work {
 public:
  Work() = default;  // done
  Work(Lane& lane, int64_t ticket) : lane_(&lane), ticket_(ticket) {}
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  ~Work();
  bool done() const;  // wait() would return at once
  void wait();        // rethrows the operation's error

 private:
  void settle() noexcept;
  Lane* lane_ = nullptr;
  int64_t ticket_ = 0;
};

struct TrafficRow {
  Op op;
  std::string label;
  int64_t launches = 0, sent_bytes = 0, received_bytes = 0;  // payload; of this rank
  // Time on the communication thread, including waits for other ranks; time of the caller in
  // Work::wait.
  double ran_s = 0, waited_s = 0;
  // Compares counts, not times.
  bool operator==(const TrafficRow& other) const {
    return std::tie(op, label, launches, sent_bytes, received_bytes) ==
           std::tie(other.op, other.label, other.launches, other.sent_bytes, other.received_bytes);
  }
};

// A rank's place in a split: ranks of one color form a group, ordered by key, then by rank.
struct SplitKey {
  int color = 0;  // negative: no group
  int key = 0;
};

using CopyHere = std::function<void(const Tensor& from, const Tensor& to)>;

class Channel;

class Group {
 public:
  enum class Use : uint8_t { kCollectives, kChannel };  // channel.h
  Group(World& world, std::string name, std::vector<int> world_ranks, std::string lane,
        Use use = Use::kCollectives);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  const std::string& lane() const { return lane_name_; }
  uint64_t id() const { return id_; }  // a hash of its name and ranks
  bool shares_memory() const;          // all ranks are in one process
  // The ranks of the world, in the order of this group.
  std::span<const int> world_ranks() const { return world_ranks_; }

  // out = sum over ranks of in.  In place: out == in.
  Work all_reduce(const Tensor& in, const Tensor& out, std::string_view label);
  // out = chunk `rank` of the sum.  counts[r]: the elements of chunk r; without counts the chunks
  // are even.  In place: out is chunk `rank` of in; the rest of in is kept.
  Work reduce_scatter(const Tensor& in, const Tensor& out, std::string_view label,
                      std::span<const int64_t> counts = {});
  // out = the chunks of all ranks, in order.  In place: in is chunk `rank` of out.
  Work all_gather(const Tensor& in, const Tensor& out, std::string_view label,
                  std::span<const int64_t> counts = {});
  Work broadcast(const Tensor& data, int root, std::string_view label);
  // out = sum, at the root only; others may pass an empty tensor.  In place: out == in.
  Work reduce(const Tensor& in, const Tensor& out, int root, std::string_view label);
  // Chunk p of in goes to rank p, chunk p of out comes from there.  Without counts all chunks are
  // equal: size divides both.  In place: out == in, with equal counts both ways.
  Work all_to_all(const Tensor& in, const Tensor& out, std::string_view label,
                  std::span<const int64_t> send_counts = {},
                  std::span<const int64_t> receive_counts = {});
  // Runs all transfers at once, so that no order of partners can deadlock.  The k-th send of rank a
  // to rank b meets the k-th receive of b from a, also where a is b.  A rank without partners need
  // not call.
  Work send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives,
                    std::string_view label);
  Work barrier(std::string_view label);

  // The new group that this rank belongs to; null if its color is negative.  key_of must be a pure
  // function of the rank, so that no rank has to be asked: a recording world splits like a real
  // one. Ranks whose functions disagree find out at their first operation.
  // lane: the lane of the new group, the same on all its ranks; "": the lane of this group.
  std::unique_ptr<Group> split(std::string name, function_ref<SplitKey(int rank)> key_of,
                               std::string_view lane = {}) const;

  // A queue of tensors from rank `from` to rank `to` of this group (channel.h), created on these
  // two ranks only.  The two channels that a rank has with its neighbours in a ring may have the
  // same name; otherwise a rank has one channel of each name.
  std::unique_ptr<Channel> channel(int from, int to, std::string_view name) const;

  // This rank is about to leave the world because of `error`: other ranks hear of it at once, and
  // all operations of this rank end.  True: the failure is being reported to the user, by the rank
  // that the ranks have chosen.  False: the caller of run_ranks reports it, when all have ended.
  bool fail(const std::exception_ptr& error);

  // The traffic of all operations that have ended, ordered by op and label.
  std::vector<TrafficRow> traffic() const;

  // The trace of this rank: of the operations of its groups, and of kernels whose Context has this
  // trace.  An operation is in it if it was recording when the operation was submitted.  Its pulse,
  // if it has one, shows every operation of groups of two ranks or more.
  Trace& trace() const;

  // Sets the function by which all groups of one rank of this world copy a contribution to the
  // result.  The default is copy_convert (tensor/tensor.h).  The owner of a device sets a copy that
  // runs in the order of its stream, and restores the default before the stream is gone.
  void copy_with(CopyHere copy);

  World& world() { return world_; }  // for this module only

 private:
  friend class OperationQueue;
  Work submit(Operation operation, std::string_view label);
  void add_to_pulse();
  int64_t show_post(const Operation& operation);
  int64_t trace_post(const Operation& operation);
  void trace_counts(int64_t event, const Operation& operation);
  void trace_moment(TraceEvent::Kind kind, const Operation& operation, const Moved& moved);
  void execute(const Operation& operation, Runner& runner);  // on the communication thread
  void count(const Operation& operation, double ran_s, int64_t sent_bytes, int64_t received_bytes);
  TrafficRow& row(Op op, std::string_view label);
  void add_wait(TrafficRow& row, double seconds);

  World& world_;
  const std::string name_, lane_name_;
  const Use use_;
  std::vector<int> world_ranks_;
  Lane* lane_ = nullptr;  // null: a group of one
  int rank_ = 0;
  int16_t trace_group_ = -1;  // its number in the trace, set by its first post
  int pulse_group_ = -1;      // its number in the rank's pulse
  uint64_t id_ = 0;
  int64_t sequence_ = 0, last_ticket_ = 0;
  mutable std::mutex traffic_mutex_;
  std::map<std::string, TrafficRow, std::less<>> traffic_[kNumOps];  // by label
};

}  // namespace ashlar::comm
