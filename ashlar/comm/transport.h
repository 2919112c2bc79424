// The interface of an engine: a rank's place in the world and, for each lane (group.h), rounds of
// messages between ranks.
//
// Two ranks are partners in a round if one has a message for the other, even an empty one.  Each
// announces to the other its operation (Header) and how much it sends and expects; a difference
// fails both.  exchange returns when every partner has arrived and taken all that was sent, and all
// that was expected has arrived.  So nothing of a round is left when the next begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/comm/operation.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::comm {

struct Message {
  int peer = 0;               // rank of the world
  std::byte* data = nullptr;  // null: announced but not moved
  int64_t bytes = 0;
};

// Equal on all partners of a round.  It is sent as bytes between equal builds, and has no padding.
struct Header {
  uint64_t group = 0;  // hash of the group's name and ranks
  int64_t sequence = 0;
  int64_t count = 0;
  int32_t root = 0;
  int32_t step = 0;  // round number within the operation
  Op op = Op::kBarrier;
  DType dtype = DType::kU8;
  char label[30] = {};  // truncated; no terminating zero
  char group_name[16] = {};
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 80);

// Whether callers wait for the operations of a lane, and since when.  Callers set it and the lane's
// thread reads it: a message that is posted far ahead is not late before it is needed.
class Awaited {
 public:
  void begin() {  // called by one thread at a time
    if (num_waiting_ == 0) since_ = Clock::now().time_since_epoch().count();
    ++num_waiting_;
  }
  void end() { --num_waiting_; }
  // How long a caller has waited since `start`; 0 if none waits.
  double seconds_since(Clock::time_point start) const;

 private:
  std::atomic<int> num_waiting_{0};
  std::atomic<Clock::rep> since_{0};
};

struct Round {
  Header header;
  std::span<const Message> sends, receives;  // ordered by peer
  double timeout_s = 0;  // for partners to arrive, while a caller waits for the round
  const Awaited& awaited;
  // Whether a rank that has waited this long counts as held up by its partners when another rank's
  // time-out is explained.  A rank that has only just arrived is late itself.
  bool is_held_up(double waited_s) const { return waited_s > timeout_s / 10; }
};

// The messages to or from one partner.
std::span<const Message> messages_of(std::span<const Message> messages, int peer);

// The amount that one partner sends to the other; the partners compare it with the header.
struct Amount {
  int64_t messages = 0, bytes = 0;
  uint64_t sizes = 0;  // hash
  bool operator==(const Amount&) const = default;
};
Amount amount_of(std::span<const Message> messages);

// Sent to a partner before data moves: the operation, and the amounts sent to and expected from the
// partner.
struct Announcement {
  Header header;
  Amount sends, receives;
};
Announcement announcement_for(const Round& round, int peer);

// "all_reduce 'grads' (number 12 of group world)"
std::string title_of(const Header& header);
std::string list_of(std::span<const int> ranks);  // "rank 3", "ranks 1, 4"

// Throws kComm, with both sides, if the announcements of rank `me` and rank `peer` do not match.
void require_match(const Announcement& mine, int me, const Announcement& theirs, int peer);

// The time-out of a round: it names the ranks that did not arrive, or arrived and did not finish.
class LateError : public Error {
 public:
  LateError(const Header& header, double waited_s, std::span<const int> absent,
            std::span<const int> unfinished);
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// The failure of a rank, in a form that can be sent.
struct Failure {
  int rank = -1;
  int exit_code = 0;
  std::string message;
  std::vector<int> awaits;  // for a time-out: the ranks that it waited for
};
Failure failure_of(int rank, const std::exception_ptr& error);  // 70 if it is not an Error
[[noreturn]] void fail_because(const Failure& failure);         // kComm "rank 3 failed: ..."

// The time-out to report.  `first` is the rank that waited too long; `others` are ranks that were
// waiting when they heard of it, with the ranks that they waited for.  A wait for ranks that wait
// themselves is not reported: the result is the failure whose absent ranks, as far as known, are
// all late on their own.
const Failure& cause_of(const Failure& first, std::span<const Failure> others);

// The rounds of one lane, which meet only rounds of the same lane.
class Transport {
 public:
  virtual ~Transport() = default;
  // One round at a time.  After an error the memory of the round is not in use any more.
  virtual void exchange(const Round& round) = 0;
  // Makes current and later exchanges throw kComm.  May be called from any thread.
  virtual void interrupt() = 0;
};

class Executor;
class FailureState;

// A rank of the world.  The threads of all lanes may call it.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether rounds never wait: then operations run in the call, without a thread.
  virtual bool immediate() const { return false; }
  // Whether all ranks are in one process, and may read and write each other's memory.
  virtual bool shares_memory() const { return false; }
  // Called once for each name; the engine outlives the transport.
  virtual std::unique_ptr<Transport> transport(std::string_view lane) = 0;
  // Called once for each name.  The default is a queue of rounds over a transport of its own; an
  // engine with something better overrides it.
  virtual std::unique_ptr<Executor> executor(std::string_view lane, FailureState& failure_state,
                                             Buffer staging, double timeout_s);
  // Reports to all ranks that this one has failed; their exchanges throw kComm at once.
  virtual void fail(const std::exception_ptr& error) = 0;
  // As Group::fail, after the operations of this rank have been cancelled.
  virtual bool tell(const std::exception_ptr& error) {
    fail(error);
    return false;
  }
};

}  // namespace ashlar::comm
