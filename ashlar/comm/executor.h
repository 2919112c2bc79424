// What runs the operations of one lane, and the state of failure that the lanes of a rank share.
//
// Two kinds of executors fit behind the interface.  OperationQueue (queue.h) has a thread that runs
// one operation after the other while the caller computes; wait blocks the caller.  The executor of
// a stream engine launches in submit, on the thread of the caller, so that every rank launches in
// one order, behind what the compute stream has been given so far; its wait makes the compute
// stream wait for the lane's and returns.
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
  virtual ~Executor() = default;  // what was submitted has ended or failed
  // A group begins to use the lane: before its first operation, on every rank of it in the order of
  // their splits.
  virtual void enter(Group&) {}
  // Copies the operation and its counts, and gives it its ticket; they count up from 1.  Waits for
  // room where it holds kMaxQueued.
  virtual int64_t submit(const Operation& operation) = 0;
  virtual bool done(int64_t ticket) const = 0;  // wait would return at once
  // Returns when the operation has ended.  Throws the rank's failure if that came first.
  virtual void wait(int64_t ticket) = 0;
  // Its tensors are free, whatever became of it; cancels the rank while an exception unwinds.
  virtual void settle(int64_t ticket) noexcept = 0;
  // Makes every operation that has not ended fail, on this lane alone.  The rank's FailureState
  // calls it, from any thread.
  virtual void cancel() = 0;
};

// The first failure on a lane ends the work of all lanes of the rank and is told to the other ranks
// once.  From any thread.
class FailureState {
 public:
  explicit FailureState(Engine& engine) : engine_(engine) {}
  FailureState(const FailureState&) = delete;
  void add(Executor& lane);
  void remove(Executor& lane);

  void fail(const std::exception_ptr& error);  // of an operation; a later one counts for nothing
  void cancel() noexcept;                      // nobody is told why: whoever cancels will
  [[noreturn]] void rethrow() const;           // the failure; kComm where it was cancelled
  void rethrow_failure() const;                // if any operation has failed

 private:
  Engine& engine_;
  mutable std::mutex mutex_;
  std::vector<Executor*> lanes_;
  std::exception_ptr failure_;
  bool cancelled_ = false;
};

}  // namespace ashlar::comm
