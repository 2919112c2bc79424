// What an engine implements: a rank's place in the world, and for each lane (group.h) grouped
// rounds of messages between ranks.
//
// A round pairs up ranks: two ranks are partners if one has a message for the other, be it empty.
// Each tells the other what it is about to do (Header) and how much it sends and expects; a
// difference fails both.  exchange returns when every partner has come and taken what was sent and
// everything expected is here, so nothing of a round is left behind when the next begins.
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
  std::byte* data = nullptr;  // null: announced, and not moved
  int64_t bytes = 0;
};

// Equal on all partners of a round.  Travels as bytes between equal builds; no padding.
struct Header {
  uint64_t group = 0;  // hash of its name and ranks
  int64_t sequence = 0;
  int64_t count = 0;
  int32_t root = 0;
  int32_t step = 0;  // of the operation
  Op op = Op::kBarrier;
  DType dtype = DType::kU8;
  char label[30] = {};  // cut, without a closing zero
  char group_name[16] = {};
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 80);

// Whether callers wait for what a lane runs, and since when.  They set it, the lane's thread reads
// it: a message that is posted far ahead is not late before somebody needs it.
class Awaited {
 public:
  void begin() {  // one thread at a time
    if (num_waiting_ == 0) since_ = Clock::now().time_since_epoch().count();
    ++num_waiting_;
  }
  void end() { --num_waiting_; }
  // How long a caller has waited since `start`; 0 while nobody waits.
  double seconds_since(Clock::time_point start) const;

 private:
  std::atomic<int> num_waiting_{0};
  std::atomic<Clock::rep> since_{0};
};

struct Round {
  Header header;
  std::span<const Message> sends, receives;  // ordered by peer
  double timeout_s = 0;  // of waiting for partners, while a caller waits for the round
  const Awaited& awaited;
  // Whether a rank that has waited so long for its partners is kept from its work by them, as far
  // as another's time-out goes: one that has only just come is late itself.
  bool is_held_up(double waited_s) const { return waited_s > timeout_s / 10; }
};

// The messages of one partner.
std::span<const Message> messages_of(std::span<const Message> messages, int peer);

// How much one partner moves to or from the other; the two compare it beside the header.
struct Amount {
  int64_t messages = 0, bytes = 0;
  uint64_t sizes = 0;  // hash
  bool operator==(const Amount&) const = default;
};
Amount amount_of(std::span<const Message> messages);

// What a rank tells a partner before data moves: which operation it is in, and how much it will
// send there and expects from there.
struct Announcement {
  Header header;
  Amount sends, receives;
};
Announcement announcement_for(const Round& round, int peer);

// "all_reduce 'grads' (number 12 of group world)"
std::string title_of(const Header& header);
std::string list_of(std::span<const int> ranks);  // "rank 3", "ranks 1, 4"

// kComm, with both sides, if rank `me` and rank `peer` do not mean the same.
void require_match(const Announcement& mine, int me, const Announcement& theirs, int peer);

// A round has waited long enough for these ranks, which did not come, or came and did not finish.
class LateError : public Error {
 public:
  LateError(const Header& header, double waited_s, std::span<const int> absent,
            std::span<const int> unfinished);
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// How a rank failed, in a form that can travel.
struct Failure {
  int rank = -1;
  int exit_code = 0;
  std::string message;
  std::vector<int> awaits;  // of a time-out: whom the rank waited for
};
Failure failure_of(int rank, const std::exception_ptr& error);  // 70 for what is no Error
[[noreturn]] void fail_because(const Failure& failure);         // kComm "rank 3 failed: ..."

// The time-out to tell.  One rank waited too long; `others` that waited for somebody when they
// heard of it say for whom.  Whoever waits for ranks that wait themselves is not told of: the
// failure returned is of the rank whose absent ranks are, as far as known, all late on their own.
const Failure& cause_of(const Failure& first, std::span<const Failure> others);

// The rounds of one lane: they meet those of the same lane only.
class Transport {
 public:
  virtual ~Transport() = default;
  // One at a time.  After an error no memory of the round is in use any more.
  virtual void exchange(const Round& round) = 0;
  // Makes exchanges under way and to come throw kComm.  May be called from any thread.
  virtual void interrupt() = 0;
};

class Executor;
class FailureState;

// A rank of the world.  Calls may come from the threads of all lanes.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rounds never wait for anybody: operations run in the call, without a thread.
  virtual bool immediate() const { return false; }
  // The ranks are of one process: each may read and write what others hold.
  virtual bool shares_memory() const { return false; }
  // Outlived by the engine; once for each name.
  virtual std::unique_ptr<Transport> transport(std::string_view lane) = 0;
  // Once for each name: a queue of rounds over a transport of its own.  An engine that has
  // something better overrides it.
  virtual std::unique_ptr<Executor> executor(std::string_view lane, FailureState& failure_state,
                                             Buffer staging, double timeout_s);
  // Tells all ranks that this one has failed; their exchanges throw kComm at once.
  virtual void fail(const std::exception_ptr& error) = 0;
  // As Group::fail, by a rank whose operations have been cancelled.
  virtual bool tell(const std::exception_ptr& error) {
    fail(error);
    return false;
  }
};

}  // namespace ashlar::comm
