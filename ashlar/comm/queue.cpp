#include "ashlar/comm/queue.h"

#include <chrono>
#include <utility>

#include "ashlar/comm/group.h"
#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar::comm {

void Fate::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  engine_.interrupt();
}

void Fate::rethrow_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void Fate::fail(const std::exception_ptr& error) {
  if (failure_) return;
  // Others hear of it at once, not when the caller comes to wait.  Whoever cancelled will tell
  // them why himself.
  if (!cancelled_) engine_.fail(error);
  engine_.interrupt();
  failure_ = error;
  for (OperationQueue* lane : lanes_) lane->changed_.notify_all();
}

OperationQueue::OperationQueue(Fate& fate, Rounds rounds, bool threaded)
    : fate_(fate), rounds_(std::move(rounds)) {
  if (!threaded) return;
  slots_.resize(kCapacity);
  const std::lock_guard lock(fate_.mutex_);
  thread_ = start_thread("that exchanges with other ranks", [this] { run(); });
  fate_.lanes_.push_back(this);
}

OperationQueue::~OperationQueue() {
  {
    const std::lock_guard lock(fate_.mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  thread_.join();
  const std::lock_guard lock(fate_.mutex_);
  std::erase(fate_.lanes_, this);
}

int64_t OperationQueue::submit(const Operation& operation) {
  if (!thread_.joinable()) {
    operation.group->execute(operation, rounds_);
    return completed_ = ++submitted_;
  }
  std::unique_lock lock(fate_.mutex_);
  changed_.wait(lock,
                [&] { return fate_.failure_ || ended_ || submitted_ - completed_ < kCapacity; });
  const int64_t ticket = ++submitted_;
  if (fate_.failure_) return ticket;
  slots_[size_t(ticket % kCapacity)] = operation;
  lock.unlock();
  changed_.notify_all();
  return ticket;
}

bool OperationQueue::done(int64_t ticket) const {
  const std::lock_guard lock(fate_.mutex_);
  return settled(ticket);
}

void OperationQueue::wait(int64_t ticket) const {
  std::unique_lock lock(fate_.mutex_);
  if (settled(ticket)) {
    if (completed_ < ticket) std::rethrow_exception(fate_.failure_);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const Operation& operation = slots_[size_t(ticket % kCapacity)];  // its own until it is done
  Group* const group = operation.group;
  TrafficRow* const row = operation.row;
  changed_.wait(lock, [&] { return settled(ticket); });
  if (completed_ < ticket) std::rethrow_exception(fate_.failure_);
  lock.unlock();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  group->add_wait(*row, waited.count());
}

void OperationQueue::settle(int64_t ticket) noexcept {
  if (done(ticket)) return;
  if (std::uncaught_exceptions() > 0) fate_.cancel();
  std::unique_lock lock(fate_.mutex_);
  changed_.wait(lock, [&] { return settled(ticket); });
}

void OperationQueue::run() {
  std::unique_lock lock(fate_.mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || fate_.failure_ || completed_ < submitted_; });
    if (fate_.failure_) break;
    if (completed_ == submitted_) return;
    const Operation& operation = slots_[size_t((completed_ + 1) % kCapacity)];
    lock.unlock();
    std::exception_ptr error;
    try {
      operation.group->execute(operation, rounds_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      fate_.fail(error);
      break;
    }
    ++completed_;
    changed_.notify_all();
  }
  ended_ = true;
  changed_.notify_all();
}

}  // namespace ashlar::comm
