// How it works.  The tasks of a run are cut into one range per worker.  A range is one 64-bit word:
// the run's generation in the upper half, the number of its unclaimed tasks in the lower half.
//
//   run      sets task and completed, fills the ranges, then publishes the next generation; it
//            works as worker 0, and waits until as many tasks are completed as there were
//   claim    decrements a range's word; the previous count gives the task's number
//   worker   waits for a new generation, spinning first, then asleep; claims and runs the tasks of
//            its own range, then those that others have left
//
// Loops over the same tokens thus tend to run on the same core, in whose cache the last loop left
// them.  A worker that comes late, or not at all, finds nothing to claim, and nobody waits for it:
// run waits for claimed tasks only.  A claim fails if the generation has changed, and a run cannot
// end before every claimed task has, so a claimant may read the task and the ends of the ranges.  A
// range's word publishes the values that run() has set to the workers (release, acquire);
// `completed` publishes their results to run().
#include "ashlar/core/threads.h"

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

#include "ashlar/core/affinity.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"

namespace ashlar {
namespace {

constexpr std::string_view kLimits = " of processes or of memory (ulimit -u, ulimit -v)";

using Task = function_ref<void(int64_t, int)>;

int thread_count(int num_threads) {
  ASHLAR_REQUIRE(num_threads >= 0, kConfig, "the thread count is {}; expected 0 (all) or more",
                 num_threads);
  return num_threads == 0 ? std::max(1, int(usable_cpus().size())) : num_threads;
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

// The unclaimed tasks of one worker's range, on a cache line of its own.
struct alignas(64) TaskRange {
  std::atomic<uint64_t> word{0};
  int64_t end = 0;
};

}  // namespace

struct Threads::State {
  explicit State(int count) : ranges(size_t(count)) {}

  std::vector<std::thread> workers;
  std::vector<TaskRange> ranges;  // of worker 0, 1, ..
  std::mutex mutex;               // guards only the sleep of workers
  std::condition_variable wake;
  alignas(64) std::atomic<uint64_t> generation{0};  // 32 bits
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<int64_t> completed{0};
  const Task* task = nullptr;
  std::exception_ptr failure;
  std::mutex failure_mutex;

  static uint64_t generation_of(uint64_t word) { return word >> 32; }
  static uint64_t unclaimed(uint64_t word) { return word & 0xffffffffu; }

  // Claims and runs tasks of a range of the generation until none is left, and reports them all at
  // once: workers that counted each task would pass one cache line to and fro.
  void work_on(TaskRange& range, int worker, uint64_t current) {
    int64_t done = 0;
    uint64_t seen = range.word.load(std::memory_order_acquire);
    while (generation_of(seen) == current && unclaimed(seen) > 0) {
      if (!range.word.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire))
        continue;
      try {
        (*task)(range.end - static_cast<int64_t>(unclaimed(seen)), worker);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
      ++done;
      seen = range.word.load(std::memory_order_acquire);
    }
    if (done > 0) completed.fetch_add(done, std::memory_order_release);
  }

  void work(int worker, uint64_t current) {
    for (size_t i = 0; i < ranges.size(); ++i)
      work_on(ranges[(size_t(worker) + i) % ranges.size()], worker, current);
  }

  // Returns the new generation.
  uint64_t publish(int64_t num_tasks) {
    const uint64_t next = (generation.load(std::memory_order_relaxed) + 1) & 0xffffffffu;
    const auto count = int64_t(ranges.size());
    for (int64_t i = 0; i < count; ++i) {
      TaskRange& range = ranges[size_t(i)];
      const int64_t begin = num_tasks * i / count;
      range.end = num_tasks * (i + 1) / count;
      range.word.store(next << 32 | uint64_t(range.end - begin), std::memory_order_release);
    }
    // This thread stores the generation and then reads `sleepers`; a worker counts itself and then
    // reads the generation.  All four are sequentially consistent, so at least one side sees the
    // other.
    generation.store(next);
    if (sleepers.load() == 0) return next;
    { const std::lock_guard lock(mutex); }  // now a sleeper is before its check or in its wait
    wake.notify_all();
    return next;
  }

  void stop_all() {
    stop = true;
    publish(0);  // a generation without tasks wakes all
    for (std::thread& worker : workers) worker.join();
  }

  void loop(int worker) {
    uint64_t seen = 0;
    const auto changed = [&] { return generation.load() != seen; };
    for (;;) {
      for (int spin = 0; spin < kSpins && !changed(); ++spin) relax();
      if (!changed()) {
        std::unique_lock lock(mutex);
        ++sleepers;
        wake.wait(lock, changed);
        --sleepers;
      }
      seen = generation.load();
      if (stop.load()) return;
      work(worker, seen);
    }
  }
};

std::thread start_thread(std::string_view purpose, std::function<void()> body) {
  try {
    const Cpus home = home_cpus();
    if (home.empty()) return std::thread(std::move(body));
    return std::thread([home, body = std::move(body)] {
      bind_thread(home, home);
      body();
    });
  } catch (const std::system_error& error) {
    ASHLAR_FAIL(kDevice, "starting a thread {}: {}; raise the limit{}", purpose,
                error.code().message(), kLimits);
  }
}

void lower_thread_priority() {
  constexpr int kLowest = 19;
  setpriority(PRIO_PROCESS, id_t(gettid()), kLowest);  // of this thread alone, on Linux
}

Threads::Threads(int num_threads) : state_(std::make_unique<State>(thread_count(num_threads))) {
  const int count = int(state_->ranges.size());
  const Cpus home = home_cpus();
  const std::vector<Cpus> cpus = worker_cpus(count);
  try {
    for (int worker = 1; worker < count; ++worker)
      state_->workers.emplace_back(
          [state = state_.get(), worker, home, own = cpus.empty() ? home : cpus[size_t(worker)]] {
            bind_thread(own, home);
            state->loop(worker);
          });
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
  s.completed.store(0, std::memory_order_relaxed);
  s.work(0, s.publish(num_tasks));
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
