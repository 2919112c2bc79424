// How it works.  A run is one 64-bit word: its generation in the upper half, the number of
// unclaimed tasks in the lower half.
//
//   run      sets task, num_tasks and completed, then publishes a word of the next generation; it
//            works as worker 0, and waits until as many tasks are completed as there were
//   claim    decrements the word; the previous count gives the task's number
//   worker   waits for a new generation, spinning first, then asleep; claims and runs tasks until
//            none is left
//
// A worker that comes late, or not at all, finds nothing to claim, and nobody waits for it: run
// waits for claimed tasks only.  A claim fails if the generation has changed, and a run cannot end
// before every claimed task has, so a claimant may read task and num_tasks.  The word publishes the
// values that run() has set to the workers (release, acquire); `completed` publishes their results
// to run().
#include "ashlar/core/threads.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

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
#include "ashlar/core/rounding.h"

namespace ashlar {
namespace {

constexpr std::string_view kLimits = " of processes or of memory (ulimit -u, ulimit -v)";

using Task = function_ref<void(int64_t, int)>;

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// Two loops of a step are microseconds apart: spinning that long is cheaper than sleeping.
constexpr int kSpins = 10'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A run on the caller alone.  As with workers, all tasks run, then the first exception is thrown.
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
  std::mutex mutex;  // guards only the sleep of workers
  std::condition_variable wake;
  std::atomic<uint64_t> word{0};
  std::atomic<int64_t> completed{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  int64_t num_tasks = 0;
  const Task* task = nullptr;
  std::exception_ptr failure;
  std::mutex failure_mutex;

  static uint64_t generation_of(uint64_t word) { return word >> 32; }
  static uint64_t unclaimed(uint64_t word) { return word & 0xffffffffu; }

  // Claims and runs tasks of the generation until none is left.
  void work(int worker, uint64_t generation) {
    uint64_t seen = word.load(std::memory_order_acquire);
    while (generation_of(seen) == generation && unclaimed(seen) > 0) {
      if (!word.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
        continue;
      try {
        (*task)(num_tasks - static_cast<int64_t>(unclaimed(seen)), worker);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
      completed.fetch_add(1, std::memory_order_release);
      seen = word.load(std::memory_order_acquire);
    }
  }

  void publish(uint64_t count) {
    const uint64_t next = (generation_of(word.load(std::memory_order_relaxed)) + 1) << 32;
    // This thread stores the word and then reads `sleepers`; a worker counts itself and then reads
    // the word.  All four are sequentially consistent, so at least one side sees the other.
    word.store(next | count);
    if (sleepers.load() == 0) return;
    { const std::lock_guard lock(mutex); }  // now a sleeper is before its check or in its wait
    wake.notify_all();
  }

  void stop_all() {
    stop = true;
    publish(0);  // a generation without tasks wakes all
    for (std::thread& worker : workers) worker.join();
  }

  void loop(int worker) {
    uint64_t seen = 0;
    const auto changed = [&] { return generation_of(word.load()) != seen; };
    for (;;) {
      for (int spin = 0; spin < kSpins && !changed(); ++spin) relax();
      if (!changed()) {
        std::unique_lock lock(mutex);
        ++sleepers;
        wake.wait(lock, changed);
        --sleepers;
      }
      seen = generation_of(word.load());
      if (stop.load()) return;
      work(worker, seen);
    }
  }
};

std::thread start_thread(std::string_view purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    ASHLAR_FAIL(kDevice, "starting a thread {}: {}; raise the limit{}", purpose,
                error.code().message(), kLimits);
  }
}

void lower_thread_priority() {
  constexpr int kLowest = 19;
  setpriority(PRIO_PROCESS, id_t(gettid()), kLowest);  // of this thread alone, on Linux
}

Threads::Threads(int num_threads) : state_(std::make_unique<State>()) {
  ASHLAR_REQUIRE(num_threads >= 0, kConfig, "the thread count is {}; expected 0 (all) or more",
                 num_threads);
  const int count = num_threads == 0 ? usable_cpus() : num_threads;
  try {
    for (int worker = 1; worker < count; ++worker)
      state_->workers.emplace_back([state = state_.get(), worker] { state->loop(worker); });
  } catch (const std::system_error& error) {
    state_->stop_all();
    ASHLAR_FAIL(kDevice, "starting {} threads: {}; ask for fewer, or raise the limit{}", count,
                error.code().message(), kLimits);
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
  ASHLAR_ASSERT(num_tasks <= int64_t(0xffffffff));
  s.task = &task;
  s.num_tasks = num_tasks;
  s.completed.store(0, std::memory_order_relaxed);
  s.publish(uint64_t(num_tasks));
  s.work(0, State::generation_of(s.word.load(std::memory_order_relaxed)));
  for (int spin = 0; s.completed.load(std::memory_order_acquire) != num_tasks; ++spin)
    spin < kSpins ? relax() : std::this_thread::yield();
  // Needs no lock: the thread that wrote it counted its task as completed afterwards.
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
}

void parallel_for(Threads& threads, int64_t count, int64_t grain,
                  function_ref<void(int64_t, int64_t)> body) {
  ASHLAR_ASSERT(grain > 0);
  threads.run(ceil_div(count, grain),
              [&](int64_t task, int) { body(task * grain, std::min(count, (task + 1) * grain)); });
}

}  // namespace ashlar
