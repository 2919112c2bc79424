// The time until work begins: an empty loop on all threads of a rank, and waking a thread that
// sleeps, on a core that is idle and on one that computes.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "ashlar/bench/machine/part.h"
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

// Threads that compute on all CPUs of this process while it lives.
class BusyCores {
 public:
  BusyCores() {
    const int count = Threads(0).size();
    for (int i = 0; i < count; ++i)
      threads_.push_back(start_thread("busy cores", [this] {
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

}  // namespace

Findings measure_launch(const Rig& rig) {
  Findings findings;
  findings.text = fmt::format("{:<48} {:>9} {:>9} {:>9}\n", "us", "p10", "median", "p90");
  const auto row = [&](const char* key, const char* what, const std::vector<double>& mine) {
    const Repeats us = repeats_of(slowest_of_ranks(rig.ranks, mine));
    findings.profile.set(key, rig.quantity(us.median, "us", us.spread()));
    findings.text +=
        fmt::format("{:<48} {:>9.2f} {:>9.2f} {:>9.2f}\n", what, us.p10, us.median, us.p90);
    findings.rows.push_back(one_line(Ordered{{"experiment_name", key},
                                             {"value", us.median},
                                             {"p10", us.p10},
                                             {"p90", us.p90},
                                             {"unit", "us"},
                                             {"cv_pct", 100 * us.cv},
                                             {"wrong", 0}}));
  };
  const int64_t repeats = rig.quick ? 100 : 1000;
  if (rig.goes_on()) {
    std::vector<double> us;
    for (int64_t i = 0; i < repeats; ++i) {
      const auto begin = Clock::now();
      rig.threads.run(rig.threads.size(), [](int64_t, int) {});
      us.push_back(us_since(begin));
    }
    row("launch.kernel", "an empty loop on all threads of a rank", us);
  } else {
    ++findings.num_left_out;
  }
  if (findings.num_left_out == 0 && rig.goes_on())
    row("launch.wake_idle", "waking a thread on an idle core", wakes(repeats));
  else
    ++findings.num_left_out;
  if (findings.num_left_out == 0 && rig.goes_on()) {
    const BusyCores busy;
    row("launch.wake_busy", "waking a thread on a core that computes", wakes(repeats / 5));
  } else {
    ++findings.num_left_out;
  }
  return findings;
}

}  // namespace ashlar::bench
