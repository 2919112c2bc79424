// How it works.  The operation with ticket t is in slot t % kCapacity until it is done:
//
//   tickets   1 .. completed_ | completed_ + 1 .. submitted_     | .. completed_ + kCapacity
//             done            | the first runs, the others wait  | free slots
//
//   submit    the caller waits for a free slot, and copies the operation and its counts into it
//   run       the lane's thread runs the oldest operation without the mutex (running_), then
//             increments completed_
//   wait      the caller runs the operation if it is the oldest and nobody does; else it waits
//             until completed_ has reached the ticket, or the thread has ended
//   cancel    any thread, through FailureState, sets cancelled_ and interrupts the transport.  The
//             lane's thread sees the flag, or its operation fails, and it ends (ended_), after an
//             operation that a caller runs.  Only then are the tensors of queued operations free.
//
// mutex_ guards everything except the running operation.  It is always taken after the mutex of
// FailureState, which calls cancel while it holds its own; so no code here calls failure_state_
// under mutex_.
#include "ashlar/comm/queue.h"

#include <algorithm>
#include <utility>

#include "ashlar/comm/group.h"
#include "ashlar/comm/world.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar::comm {

std::unique_ptr<Executor> Engine::executor(std::string_view lane, FailureState& failure_state,
                                           Buffer staging, double timeout_s) {
  return std::make_unique<OperationQueue>(
      failure_state, std::make_unique<Rounds>(transport(lane), std::move(staging), timeout_s),
      size(), !immediate());
}

OperationQueue::OperationQueue(FailureState& failure_state, std::unique_ptr<Runner> runner,
                               int num_ranks, bool threaded)
    : failure_state_(failure_state), runner_(std::move(runner)), num_ranks_(num_ranks) {
  if (!threaded) return;
  slots_.resize(kCapacity);
  counts_.resize(size_t(kCapacity * 2 * num_ranks));
  thread_ = start_thread("that exchanges with other ranks", [this] { run(); });
  failure_state_.add(*this);
}

OperationQueue::~OperationQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  runner_->awaited().begin();
  thread_.join();
  failure_state_.remove(*this);
}

int64_t OperationQueue::submit(const Operation& operation) {
  if (!thread_.joinable()) {
    Operation now = operation;
    now.ticket = ++submitted_;
    now.group->execute(now, *runner_);
    return completed_ = submitted_;
  }
  std::unique_lock lock(mutex_);
  await(lock, [&] { return cancelled_ || submitted_ - completed_ < kCapacity; });
  const int64_t ticket = ++submitted_;
  if (cancelled_) return ticket;  // it never runs; wait throws
  trace_ = &operation.group->world().trace;
  fill_slot(operation, ticket);
  lock.unlock();
  changed_.notify_all();
  return ticket;
}

// The slot has its own copy of the counts, so the caller may release its counts.
void OperationQueue::fill_slot(const Operation& operation, int64_t ticket) {
  const int64_t slot = ticket % kCapacity;
  Operation& kept = slots_[size_t(slot)] = operation;
  kept.ticket = ticket;
  int64_t* room = counts_.data() + slot * 2 * num_ranks_;
  for (std::span<const int64_t>* counts : {&kept.send_counts, &kept.receive_counts}) {
    std::copy(counts->begin(), counts->end(), room);
    *counts = {room, counts->size()};
    room += num_ranks_;
  }
}

// A caller waits for the oldest operation, from which the time-outs of the lane count.  Made under
// mutex_.
class OperationQueue::Waiting {
 public:
  explicit Waiting(OperationQueue& queue) : awaited_(queue.runner_->awaited()) {
    awaited_.begin();
    // After a failure the slot may hold an earlier operation, and its group may be gone.
    const int64_t ticket = queue.completed_ + 1;
    const Operation& oldest = queue.slots_[size_t(ticket % kCapacity)];
    if (oldest.ticket == ticket) pulse_ = queue.trace_->pulse();
    if (pulse_) pulse_->waits_for(oldest.shown);
  }
  ~Waiting() {
    if (pulse_) pulse_->waited();
    awaited_.end();
  }
  Waiting(const Waiting&) = delete;

 private:
  Awaited& awaited_;
  PulseWriter* pulse_ = nullptr;
};

// Blocks the caller.
template <typename Condition>
void OperationQueue::await(std::unique_lock<std::mutex>& lock, Condition condition) {
  if (condition()) return;
  const Waiting waiting(*this);
  changed_.wait(lock, condition);
}

bool OperationQueue::done(int64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return settled(ticket);
}

void OperationQueue::wait(int64_t ticket) {
  std::unique_lock lock(mutex_);
  const auto start = Clock::now();
  const bool waits = !settled(ticket);
  Group* group = nullptr;
  TrafficRow* row = nullptr;
  if (waits) {
    // The slot belongs to the ticket until it is done; then another operation may take it.
    const Operation& operation = slots_[size_t(ticket % kCapacity)];
    group = operation.group;
    row = operation.row;
    if (completed_ + 1 == ticket && !running_ && !cancelled_) {
      const Waiting waiting(*this);
      run_next(lock);
    }
    await(lock, [&] { return settled(ticket); });
  }
  const bool failed = completed_ < ticket;  // operations done before a failure stay done
  lock.unlock();
  if (failed) failure_state_.rethrow();
  if (waits) group->add_wait(*row, seconds_since(start));
}

void OperationQueue::settle(int64_t ticket) noexcept {
  if (done(ticket)) return;
  // Because of an exception this rank leaves: partners of queued operations may never arrive.
  if (std::uncaught_exceptions() > 0) failure_state_.cancel();
  std::unique_lock lock(mutex_);
  await(lock, [&] { return settled(ticket); });
}

void OperationQueue::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
  runner_->interrupt();
}

// Runs the oldest operation on this thread; false if it failed.
bool OperationQueue::run_next(std::unique_lock<std::mutex>& lock) {
  const Operation& operation = slots_[size_t((completed_ + 1) % kCapacity)];
  running_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    operation.group->execute(operation, *runner_);
  } catch (...) {
    error = std::current_exception();
  }
  if (error) failure_state_.fail(error);  // this cancels this lane too
  lock.lock();
  running_ = false;
  if (!error) ++completed_;
  changed_.notify_all();
  return !error;
}

void OperationQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [&] { return !running_ && (stop_ || cancelled_ || completed_ < submitted_); });
    if (cancelled_) break;
    if (completed_ == submitted_) return;  // stop_, and the queue is empty
    if (!run_next(lock)) break;
  }
  ended_ = true;
  changed_.notify_all();
}

}  // namespace ashlar::comm
