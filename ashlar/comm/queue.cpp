#include "ashlar/comm/queue.h"

#include <chrono>

#include "ashlar/comm/group.h"
#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar::comm {

OperationQueue::OperationQueue(Transport& transport) : transport_(transport) {
  if (transport_.immediate()) return;
  slots_.resize(kCapacity);
  thread_ = start_thread("that exchanges with other ranks", [this] { run(); });
}

OperationQueue::~OperationQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

int64_t OperationQueue::submit(const Operation& operation) {
  if (transport_.immediate()) {
    operation.group->execute(operation);
    return completed_ = ++submitted_;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || submitted_ - completed_ < kCapacity; });
  const int64_t ticket = ++submitted_;
  if (failure_) return ticket;
  slots_[size_t(ticket % kCapacity)] = operation;
  lock.unlock();
  changed_.notify_all();
  return ticket;
}

bool OperationQueue::done(int64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return settled(ticket);
}

void OperationQueue::wait(int64_t ticket) const {
  std::unique_lock lock(mutex_);
  if (settled(ticket)) {
    if (completed_ < ticket) std::rethrow_exception(failure_);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const Operation& operation = slots_[size_t(ticket % kCapacity)];  // its own until it is done
  Group& group = *operation.group;
  TrafficRow& row = *operation.row;
  changed_.wait(lock, [&] { return settled(ticket); });
  if (completed_ < ticket) std::rethrow_exception(failure_);
  lock.unlock();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  group.add_wait(row, waited.count());
}

void OperationQueue::settle(int64_t ticket) noexcept {
  if (done(ticket)) return;
  if (std::uncaught_exceptions() > 0) cancel();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return settled(ticket); });
}

void OperationQueue::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  transport_.interrupt();
}

void OperationQueue::rethrow_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void OperationQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || completed_ < submitted_; });
    if (completed_ == submitted_) return;
    const Operation& operation = slots_[size_t((completed_ + 1) % kCapacity)];
    lock.unlock();
    std::exception_ptr error;
    try {
      operation.group->execute(operation);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      // Others hear of it at once, not when the caller comes to wait.  Whoever cancelled will tell
      // them why himself.
      if (!cancelled_) transport_.fail(error);
      failure_ = error;
      return changed_.notify_all();
    }
    ++completed_;
    changed_.notify_all();
  }
}

}  // namespace ashlar::comm
