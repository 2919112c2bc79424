#include "ashlar/core/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

using Task = function_ref<void(int64_t, int)>;

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Between two loops of a step lie microseconds: spinning that long is cheaper than sleeping.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// As with workers: all tasks run, then the first exception is thrown.
void run_here(int64_t num_tasks, Task task) {
  std::exception_ptr failure;
  for (int64_t i = 0; i < num_tasks; ++i) {
    try {
      task(i, 0);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

struct Threads::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};  // odd steps never occur: one increment per run
  std::atomic<int64_t> next{0};
  std::atomic<int> busy{0};
  std::atomic<bool> stop{false};
  int64_t num_tasks = 0;
  const Task* task = nullptr;
  std::exception_ptr failure;
  std::mutex failure_mutex;

  void work(int worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
      try {
        (*task)(i, worker);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  }

  void stop_all() {
    stop = true;
    start_generation();
    for (std::thread& worker : workers) worker.join();
  }

  void loop(int worker) {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && generation.load(std::memory_order_acquire) == seen;
           ++spin)
        relax();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      work(worker);
      busy.fetch_sub(1, std::memory_order_release);
    }
  }

  void start_generation() {
    {
      const std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
  }
};

Threads::Threads(int num_threads) : state_(std::make_unique<State>()) {
  ASHLAR_REQUIRE(num_threads >= 0, kConfig, "the thread count is {}; expected 0 (all) or more",
                 num_threads);
  const int count = num_threads == 0 ? usable_cpus() : num_threads;
  try {
    for (int worker = 1; worker < count; ++worker)
      state_->workers.emplace_back([state = state_.get(), worker] { state->loop(worker); });
  } catch (const std::system_error& error) {
    state_->stop_all();
    ASHLAR_FAIL(kDevice, "starting {} threads: {}; ask for fewer", count, error.code().message());
  }
}

Threads::~Threads() {
  state_->stop_all();
}

int Threads::size() const {
  return static_cast<int>(state_->workers.size()) + 1;
}

void Threads::run(int64_t num_tasks, Task task) {
  State& s = *state_;
  if (s.workers.empty() || num_tasks <= 1) {
    run_here(num_tasks, task);
    return;
  }
  s.task = &task;
  s.num_tasks = num_tasks;
  s.next.store(0, std::memory_order_relaxed);
  s.busy.store(static_cast<int>(s.workers.size()), std::memory_order_relaxed);
  s.start_generation();
  s.work(0);
  for (int spin = 0; s.busy.load(std::memory_order_acquire) != 0; ++spin)
    spin < kSpins * 16 ? relax() : std::this_thread::yield();
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
}

void parallel_for(Threads& threads, int64_t count, int64_t grain,
                  function_ref<void(int64_t, int64_t)> body) {
  ASHLAR_ASSERT(grain > 0);
  threads.run((count + grain - 1) / grain,
              [&](int64_t task, int) { body(task * grain, std::min(count, (task + 1) * grain)); });
}

}  // namespace ashlar
