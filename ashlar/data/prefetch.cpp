// How it works.  `depth` slots form a ring between two threads; batch k is in slot k % depth.  Two
// counters, both under the mutex, only grow, and decide which thread owns a slot:
//
//   batches taken .. loaded - 1          wait for the trainer
//   batches loaded .. taken + depth - 1  have free slots; the loader's thread fills the first one
//
// The slot is filled without the mutex, since only the loader's thread owns it.  next() swaps the
// caller's batch with the slot, so that depth + 1 batches circulate and their vectors keep the
// memory they have grown to.  An error ends the thread and is kept: next() first returns the
// batches loaded before it, then throws it at every call.
#include "ashlar/data/prefetch.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar::data {

struct Prefetcher::State {
  State(Loader from, int depth) : loader(std::move(from)), slots(static_cast<size_t>(depth)) {}

  void run() {
    for (uint64_t k = 0;; ++k) {
      {
        std::unique_lock lock(mutex);
        wake_loader.wait(lock, [&] { return stop || k < taken + slots.size(); });
        if (stop) return;
      }
      try {
        loader.next(slots[k % slots.size()]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
        wake_trainer.notify_one();
        return;
      }
      const std::lock_guard lock(mutex);
      loaded = k + 1;
      wake_trainer.notify_one();
    }
  }

  Loader loader;  // the thread's; the trainer asks it for what never changes
  std::vector<Batch> slots;
  std::mutex mutex;
  std::condition_variable wake_loader, wake_trainer;
  uint64_t loaded = 0, taken = 0;
  bool stop = false;
  std::exception_ptr failure;
  double stall_s = 0;  // the trainer's
  std::thread thread;
};

Prefetcher::Prefetcher(Loader loader, int depth) {
  ASHLAR_ASSERT(depth >= 2);
  state_ = std::make_unique<State>(std::move(loader), depth);
  state_->thread = start_thread("that loads data", [state = state_.get()] { state->run(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake_loader.notify_one();
  state_->thread.join();
}

void Prefetcher::next(Batch& batch) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.taken == s.loaded && !s.failure) {
    const auto start = Clock::now();
    s.wake_trainer.wait(lock, [&] { return s.taken < s.loaded || s.failure; });
    s.stall_s += seconds_since(start);
  }
  if (s.taken == s.loaded) std::rethrow_exception(s.failure);  // nothing else ended the wait
  std::swap(batch, s.slots[s.taken % s.slots.size()]);
  ++s.taken;
  lock.unlock();
  s.wake_loader.notify_one();
}

double Prefetcher::stall_s() const {
  return state_->stall_s;
}

int64_t Prefetcher::batches_per_step() const {
  return state_->loader.batches_per_step();
}

}  // namespace ashlar::data
