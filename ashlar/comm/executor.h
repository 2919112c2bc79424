// Executor: runs the operations of one lane.  FailureState: shared by the lanes of a rank.
//
// The interface fits two kinds of executors.  OperationQueue (queue.h) has a thread that runs one
// operation after the other while the caller computes; its wait blocks the caller.  The executor of
// a stream engine launches in submit, on the caller's thread, so that every rank launches in one
// order, behind the work already in the compute stream; its wait makes the compute stream wait for
// the lane's stream, and returns.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "ashlar/comm/operation.h"

namespace ashlar::comm {

class Engine;

inline constexpr int64_t kMaxQueued = 64;  // the most operations that an executor holds

class Executor {
 public:
  virtual ~Executor() = default;  // all submitted operations have ended or failed
  // A group begins to use the lane.  Called before the group's first operation, on each of its
  // ranks, in the order of their splits.
  virtual void enter(Group&) {}
  // Copies the operation and its counts, and returns its ticket; tickets count up from 1.  Waits
  // for room if kMaxQueued operations are held.
  virtual int64_t submit(const Operation& operation) = 0;
  virtual bool done(int64_t ticket) const = 0;  // wait would return at once
  // Returns when the operation has ended.  Throws the rank's failure if that came first.
  virtual void wait(int64_t ticket) = 0;
  // Returns when the operation's tensors are free, even if it failed.  While an exception unwinds,
  // cancels the rank.
  virtual void settle(int64_t ticket) noexcept = 0;
  // Makes every unfinished operation of this lane fail.  Called by the rank's FailureState, from
  // any thread.
  virtual void cancel() = 0;
};

// The first failure of any operation.  It ends the work of all lanes of the rank, and is reported
// to the other ranks once.  Calls may come from any thread.
class FailureState {
 public:
  explicit FailureState(Engine& engine) : engine_(engine) {}
  FailureState(const FailureState&) = delete;
  void add(Executor& lane);
  void remove(Executor& lane);

  void fail(const std::exception_ptr& error);  // of an operation; later ones are ignored
  void cancel() noexcept;                      // reports no reason: the caller will
  [[noreturn]] void rethrow() const;           // throws the failure, or kComm if cancelled
  void rethrow_failure() const;                // if an operation has failed

 private:
  Engine& engine_;
  mutable std::mutex mutex_;
  std::vector<Executor*> lanes_;
  std::exception_ptr failure_;
  bool cancelled_ = false;
};

}  // namespace ashlar::comm
