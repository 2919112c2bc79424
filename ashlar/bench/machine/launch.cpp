// The time until work begins: an empty loop on all threads of a rank, and waking a thread that
// sleeps, on a core that is idle and on one that computes.  And what lanes cost: the share of a
// core that they get, and how much slower products are while they move memory.
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "ashlar/bench/machine/part.h"
#include "ashlar/bench/product_case.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/json.h"

namespace ashlar::bench {
namespace {

// A thread that sleeps until it is woken, and notes when it runs.
class Sleeper {
 public:
  Sleeper() : thread_(start_thread("waking", [this] { run(); })) {}
  ~Sleeper() {
    wake(true);
    thread_.join();
  }
  // From the call that wakes it to its first instruction.
  double wake_us() {
    const auto begin = Clock::now();
    wake(false);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !woken_; });
    return std::chrono::duration<double, std::micro>(ran_ - begin).count();
  }

 private:
  void wake(bool ends) {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
      ends_ = ends;
    }
    changed_.notify_all();
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      changed_.wait(lock, [&] { return woken_; });
      ran_ = Clock::now();
      woken_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false, ends_ = false;
  Clock::time_point ran_;
  std::thread thread_;
};

// A thread that only computes would never give its core back to others of one real-time priority.
void leave_real_time() {
  const sched_param usual{};
  sched_setscheduler(0, SCHED_OTHER, &usual);
}

// Threads that compute on all CPUs of this process while it lives.
class BusyCores {
 public:
  BusyCores() {
    const int count = Threads(0).size();
    for (int i = 0; i < count; ++i)
      threads_.push_back(start_thread("busy cores", [this] {
        leave_real_time();
        while (!over_.load(std::memory_order_relaxed)) {
        }
      }));
  }
  ~BusyCores() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

std::vector<double> wakes(int64_t repeats) {
  constexpr std::chrono::microseconds kRest(300);  // the sleeper's core goes idle
  Sleeper sleeper;
  std::vector<double> us;
  for (int64_t i = 0; i < repeats; ++i) {
    std::this_thread::sleep_for(kRest);
    us.push_back(sleeper.wake_us());
  }
  return us;
}

// The share of a core that one more thread, such as a lane's, gets while all threads of all ranks
// compute: 1 if it has a core of its own.
std::vector<double> lane_shares(const Rig& rig, int64_t repeats) {
  constexpr double kSeconds = 0.02;
  std::vector<double> shares;
  for (int64_t i = 0; i < repeats; ++i) {
    rig.ranks.barrier("lane").wait();
    std::atomic<bool> over{false};
    double share = 0;
    std::thread lane = start_thread("a lane", [&] {
      leave_real_time();
      const auto start = Clock::now();
      const double before = thread_seconds();
      while (!over.load(std::memory_order_relaxed)) {
      }
      share = (thread_seconds() - before) / seconds_since(start);
    });
    rig.threads.run(rig.threads.size(), [&](int64_t, int) {
      for (const auto start = Clock::now(); seconds_since(start) < kSeconds;) {
      }
    });
    over = true;
    lane.join();
    shares.push_back(share);
  }
  return shares;
}

// Processor time of products beside moving memory over that alone.  Processor time leaves out that
// a lane and a product may share a core, which launch.lane_cores says.
class Contention {
 public:
  explicit Contention(const Rig& rig)
      : rig_(rig),
        thread_(1),
        case_(thread_),
        compute_(rig.products()),
        w_(case_.operand(compute_, {kSize, kSize})),
        x_(kernels::Matrix::of(case_.random(compute_, {kSize, kSize}))),
        y_(kernels::Matrix::of(case_.zeros(DType::kF32, {kSize, kSize}))),
        from_(case_.zeros(DType::kF32, {kMoved / 4})),
        to_(case_.zeros(DType::kF32, {kMoved / 4})) {}

  // Factors of repeats, alone and beside in turn.
  std::vector<double> factors(int64_t repeats) {
    products();  // warms up
    std::vector<double> result;
    for (int64_t i = 0; i < repeats; ++i) {
      const double alone = products();
      const double beside = rig_.ranks.size() > 1 ? beside_collectives() : beside_copies();
      result.push_back(beside / std::max(alone, 1e-9));
    }
    return result;
  }

 private:
  static constexpr int64_t kSize = 512, kMoved = 16 << 20;
  static constexpr int kCalls = 20;

  // Seconds of the processor for a call, while all ranks compute.
  double products() {
    rig_.ranks.barrier("products").wait();
    return calls();
  }
  double calls() {
    const double before = thread_seconds();
    for (int call = 0; call < kCalls; ++call) linear_forward(case_.context(), compute_, x_, w_, y_);
    return (thread_seconds() - before) / kCalls;
  }
  double beside_collectives() {
    constexpr size_t kInFlight = 8;
    rig_.ranks.barrier("products").wait();
    std::vector<comm::Work> works;
    for (size_t i = 0; i < kInFlight; ++i)
      works.push_back(rig_.ranks.all_reduce(from_, to_, "contention"));
    // Calls count while the last operation is in flight; all ranks post the same number.
    double seconds = 0, count = 0;
    do {
      seconds += calls();
      ++count;
      std::this_thread::yield();  // to a lane that shares the core, at real-time priority too
    } while (!works.back().done());
    for (comm::Work& work : works) work.wait();
    return seconds / count;
  }
  double beside_copies() {
    std::atomic<bool> over{false};
    std::thread lane = start_thread("a copy lane", [&] {
      leave_real_time();
      Threads one(1);
      kernels::Context context;
      context.threads = &one;
      while (!over.load(std::memory_order_relaxed)) kernels::copy(context, from_, to_);
    });
    const double seconds = calls();
    over = true;
    lane.join();
    return seconds;
  }

  const Rig& rig_;
  Threads thread_;
  ProductCase case_;
  const DType compute_;
  kernels::Operand w_;
  kernels::Matrix x_, y_;
  Tensor from_, to_;
};

}  // namespace

Findings measure_launch(const Rig& rig) {
  Findings findings;
  findings.text = fmt::format("{:<58} {:>9} {:>9} {:>9} {}\n", "", "p10", "median", "p90", "unit");
  const int64_t repeats = rig.quick ? 100 : 1000;
  // All ranks make the row; the largest of their numbers count, or with sign -1 the smallest.
  const auto row = [&](const char* key, const char* what, const char* unit,
                       function_ref<std::vector<double>()> measure, double sign = 1) {
    if (findings.num_left_out > 0 || !rig.goes_on()) {
      ++findings.num_left_out;
      return;
    }
    std::vector<double> mine = measure();
    if (rig.again()) mine = measure();
    for (double& value : mine) value *= sign;
    mine = slowest_of_ranks(rig.ranks, std::move(mine));
    for (double& value : mine) value *= sign;
    const Repeats r = repeats_of(std::move(mine));
    findings.profile.set(key, rig.quantity(r.median, unit, r.spread()));
    findings.add_line(
        fmt::format("{:<58} {:>9.2f} {:>9.2f} {:>9.2f} {}", what, r.p10, r.median, r.p90, unit),
        rig.row());
    findings.rows.push_back(one_line(Ordered{{"experiment_name", key},
                                             {"value", r.median},
                                             {"p10", r.p10},
                                             {"p90", r.p90},
                                             {"unit", unit},
                                             {"cv_pct", 100 * r.cv},
                                             {"row", rig.row()},
                                             {"wrong", 0}}));
  };
  row("launch.kernel", "an empty loop on all threads of a rank", "us", [&] {
    std::vector<double> us;
    for (int64_t i = 0; i < repeats; ++i) {
      const auto begin = Clock::now();
      rig.threads.run(rig.threads.size(), [](int64_t, int) {});
      us.push_back(us_since(begin));
    }
    return us;
  });
  row("launch.wake_idle", "waking a thread on an idle core", "us", [&] { return wakes(repeats); });
  row("launch.wake_busy", "waking a thread on a core that computes", "us", [&] {
    const BusyCores busy;
    return wakes(repeats / 5);
  });
  row(
      "launch.lane_cores", "share of a core for a lane while all threads compute", "1",
      [&] { return lane_shares(rig, rig.quick ? 5 : 25); }, -1);
  row("contention.products",
      rig.ranks.size() > 1 ? "processor time of products beside all_reduces, over alone"
                           : "processor time of products beside a copy, over alone",
      "1", [&] { return Contention(rig).factors(rig.quick ? 5 : 25); });
  return findings;
}

}  // namespace ashlar::bench
