// The queue of one lane of a rank: its operations in the order of their submission, and the thread
// that runs them.  A caller that waits for the oldest operation before that thread has begun it
// runs it itself, which saves two handovers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ashlar/comm/executor.h"
#include "ashlar/comm/rounds.h"

namespace ashlar::comm {

class OperationQueue final : public Executor {
 public:
  // num_ranks: of the world.  threaded: false if operations never wait; they then run in submit.
  OperationQueue(FailureState& failure_state, std::unique_ptr<Runner> runner, int num_ranks,
                 bool threaded);
  ~OperationQueue() override;  // runs what is queued, unless failed
  OperationQueue(const OperationQueue&) = delete;

  void enter(Group& group) override { runner_->enter(group); }
  int64_t submit(const Operation& operation) override;
  bool done(int64_t ticket) const override;
  void wait(int64_t ticket) override;
  void settle(int64_t ticket) noexcept override;
  void cancel() override;

 private:
  static constexpr int64_t kCapacity = kMaxQueued;
  void run();
  class Waiting;
  bool run_next(std::unique_lock<std::mutex>& lock);
  template <typename Condition>
  void await(std::unique_lock<std::mutex>& lock, Condition condition);
  void fill_slot(const Operation& operation, int64_t ticket);
  bool settled(int64_t ticket) const { return completed_ >= ticket || ended_; }

  FailureState& failure_state_;
  const std::unique_ptr<Runner> runner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  const int num_ranks_;
  std::vector<Operation> slots_;  // ticket t in slot t % kCapacity
  const Trace* trace_ = nullptr;  // of the operations' world
  std::vector<int64_t> counts_;   // the counts that operations point at: two lists a slot
  int64_t submitted_ = 0, completed_ = 0;
  bool stop_ = false, cancelled_ = false;
  bool running_ = false;  // the oldest operation, by the lane's thread or by a caller
  bool ended_ = false;    // failed or cancelled: the thread uses no tensor any more
  std::thread thread_;
};

}  // namespace ashlar::comm
