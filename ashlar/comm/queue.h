// The operations of one rank in the order of their submission, and the thread that runs them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ashlar/comm/operation.h"
#include "ashlar/comm/transport.h"

namespace ashlar::comm {

class OperationQueue {
 public:
  explicit OperationQueue(Transport& transport);  // starts the thread, if rounds can wait
  ~OperationQueue();                              // runs what is queued, unless failed
  OperationQueue(const OperationQueue&) = delete;

  // Copies the operation; waits while the queue is full.  Tickets count up from 1.
  int64_t submit(const Operation& operation);
  bool done(int64_t ticket) const;
  void wait(int64_t ticket) const;  // rethrows the failure that reached the ticket
  // Its tensors are free, whatever became of it; cancels while an exception unwinds.
  void settle(int64_t ticket) noexcept;
  void cancel();                 // what is queued fails on this rank
  void rethrow_failure() const;  // if any operation has failed

 private:
  static constexpr int64_t kCapacity = 64;
  void run();
  bool settled(int64_t ticket) const { return completed_ >= ticket || failure_; }

  Transport& transport_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Operation> slots_;  // ticket t in slot t % kCapacity
  int64_t submitted_ = 0, completed_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false, cancelled_ = false;
  std::thread thread_;
};

}  // namespace ashlar::comm
