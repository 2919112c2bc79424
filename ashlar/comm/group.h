// A group of ranks that run collectives together.
//
// Order    there is one order of all operations of all groups, and every rank submits those that it
//          takes part in in that order (one program).  Headers that travel with the data check it:
//          op, label, number, type, length and sizes.
// Lanes    the operations of all groups of one lane run one after the other; lanes do not wait for
//          each other, so that what is waited for need not stand behind bulk that nobody waits for.
//          A lane is a name given to split; the world's is "world".  It has a thread and staging
//          memory of its own, from the first group of two ranks or more that uses it.
// Sums     element by element, rank 0 + rank 1 + ... in group order: the same bits from every
//          engine, on every rank, for any timing.  bf16 is summed in fp32 and rounded once;
//          integers wrap.  Native collectives (world.h) sum in an order of their own.
// Overlap  a call queues the operation and returns; the communication thread of the lane runs the
//          queue in order.  The tensors must stay, inputs unwritten and outputs unread, until the
//          Work is done, and so must lists of transfers; counts are copied.  One thread of a rank
//          submits.  A group of one rank copies at once.
// Memory   a call that repeats one allocates nothing.  Sums of any length go in slices through the
//          staging memory of the lane (world.h).
// Errors   kComm from Work::wait when a rank failed, did not arrive in time or called something
//          else; it names op, label and ranks (numbers of the world).  Nothing works after it, on
//          any lane.
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
//   all_to_all      what goes to others           what comes from others
//   send_receive    the same
//   barrier         0                             0
//
// Rounds: reduce_scatter one for each slice of the longest chunk, all_reduce one more, reduce two
// for each slice, broadcast two (n = 2: one), the others one.  A round also exchanges a header of
// 128 bytes with each partner, so that latency grows with n.
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

// An operation under way.  Destroying it waits until its tensors are free again; while an exception
// unwinds, it first cancels what this rank has queued.
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
  // On the communication thread, waiting for other ranks included; of the caller, in Work::wait.
  double ran_s = 0, waited_s = 0;
  // Compares what is counted, not times.
  bool operator==(const TrafficRow& other) const {
    return std::tie(op, label, launches, sent_bytes, received_bytes) ==
           std::tie(other.op, other.label, other.launches, other.sent_bytes, other.received_bytes);
  }
};

// The place of a rank in a split: ranks of one color form a group, ordered by key, then by rank.
struct SplitKey {
  int color = 0;  // negative: in no group
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
  bool shares_memory() const;          // of one process
  // The members' ranks in the world, by their rank in this group.
  std::span<const int> world_ranks() const { return world_ranks_; }

  // out = sum over ranks of in.  In place: out == in.
  Work all_reduce(const Tensor& in, const Tensor& out, std::string_view label);
  // out = chunk `rank` of the sum.  Without counts the chunks are even rows; counts[r] are the
  // elements of chunk r.  In place: out is chunk `rank` of in; the rest of in is kept.
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
  // All at once, so that no order of partners can lock up.  The k-th send of rank a to rank b meets
  // the k-th receive of b from a; to itself too.  A rank without partners need not call.
  Work send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives,
                    std::string_view label);
  Work barrier(std::string_view label);

  // The group of this rank when key_of(rank) is asked for every rank of this group; null where its
  // color is negative.  A pure function of the rank, so that no rank has to be asked: a recording
  // world splits like a real one.  Ranks that disagree find out at their first operation.
  // lane: where its operations queue, the same on all its ranks; "": where those of this group do.
  std::unique_ptr<Group> split(std::string name, function_ref<SplitKey(int rank)> key_of,
                               std::string_view lane = {}) const;

  // A queue of tensors from rank `from` to rank `to` of this group (channel.h), to be made on both
  // of them and on no other rank.  Two channels between neighbours of a ring may have one name; of
  // other pairs of ranks a rank is in one channel of a name.
  std::unique_ptr<Channel> channel(int from, int to, std::string_view name) const;

  // This rank is about to leave the world because of `error`: other ranks hear of it at once, and
  // all operations of this one end.  True: a person was told too, or is at this moment, by the rank
  // whose word counts; false: whoever runs the ranks tells, when they have ended.
  bool fail(const std::exception_ptr& error);

  // The traffic of the operations that have ended, ordered by op and label.
  std::vector<TrafficRow> traffic() const;

  // The trace of this rank: of whatever its groups do, and of the kernels of those who are told of
  // it.  Operations are written into it where it is recording when they are submitted.
  Trace& trace() const;

  // How groups of one rank, of all that this rank is in, copy what they are given: contribution to
  // result.  The default is copy_convert (tensor/tensor.h); whoever has a device gives a copy in
  // the order of its stream, and takes it back before what it needs is gone.
  void copy_with(CopyHere copy);

  World& world() { return world_; }  // the module's own

 private:
  friend class OperationQueue;
  Work submit(Operation operation, std::string_view label);
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
  int16_t trace_group_ = -1;  // its number in the trace, from its first post there
  uint64_t id_ = 0;
  int64_t sequence_ = 0, last_ticket_ = 0;
  mutable std::mutex traffic_mutex_;
  std::map<std::string, TrafficRow, std::less<>> traffic_[kNumOps];  // by label
};

}  // namespace ashlar::comm
