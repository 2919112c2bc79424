#include "ashlar/comm/executor.h"

#include "ashlar/comm/transport.h"

namespace ashlar::comm {

void FailureState::add(Executor& lane) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(&lane);
  if (failure_ || cancelled_) lane.cancel();
}

void FailureState::remove(Executor& lane) {
  const std::lock_guard lock(mutex_);
  std::erase(lanes_, &lane);
}

void FailureState::fail(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = error;
  // Other ranks hear of it at once, not when the caller begins to wait.
  if (!cancelled_) engine_.fail(error);
  for (Executor* lane : lanes_) lane->cancel();
}

void FailureState::cancel() noexcept {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (Executor* lane : lanes_) lane->cancel();
}

void FailureState::rethrow() const {
  rethrow_failure();
  ASHLAR_FAIL(kComm, "rank {}: cancelled while it leaves", engine_.rank());
}

void FailureState::rethrow_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace ashlar::comm
