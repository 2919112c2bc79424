// The operations of one lane of a rank in the order of their submission, and the thread that runs
// them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ashlar/comm/operation.h"
#include "ashlar/comm/rounds.h"

namespace ashlar::comm {

// What the lanes of a rank share: the first failure on one of them ends the work of all, and is told
// to the other ranks once.
class OperationQueue;
class Fate {
 public:
  explicit Fate(Engine& engine) : engine_(engine) {}
  Fate(const Fate&) = delete;
  void cancel();                 // what is queued on any lane fails; nobody is told why
  void rethrow_failure() const;  // if any operation has failed

 private:
  friend class OperationQueue;
  void fail(const std::exception_ptr& error);  // the mutex is held

  Engine& engine_;
  mutable std::mutex mutex_;  // of this and of the queues of all lanes
  std::vector<OperationQueue*> lanes_;
  std::exception_ptr failure_;
  bool cancelled_ = false;
};

class OperationQueue {
 public:
  // threaded: false where rounds never wait: operations then run in submit.
  OperationQueue(Fate& fate, Rounds rounds, bool threaded);
  ~OperationQueue();  // runs what is queued, unless failed
  OperationQueue(const OperationQueue&) = delete;

  // Copies the operation; waits while the queue is full.  Tickets count up from 1.
  int64_t submit(const Operation& operation);
  bool done(int64_t ticket) const;
  void wait(int64_t ticket) const;  // rethrows the failure that reached the ticket
  // Its tensors are free, whatever became of it; cancels while an exception unwinds.
  void settle(int64_t ticket) noexcept;

 private:
  friend class Fate;
  static constexpr int64_t kCapacity = 64;
  void run();
  bool settled(int64_t ticket) const { return completed_ >= ticket || ended_; }

  Fate& fate_;
  Rounds rounds_;
  mutable std::condition_variable changed_;
  std::vector<Operation> slots_;  // ticket t in slot t % kCapacity
  int64_t submitted_ = 0, completed_ = 0;
  bool stop_ = false;
  bool ended_ = false;  // by a failure: the thread touches no tensor any more
  std::thread thread_;
};

}  // namespace ashlar::comm
