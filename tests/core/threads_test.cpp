#include "ashlar/core/threads.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

TEST(Threads, CountsTheCaller) {
  EXPECT_EQ(Threads(1).size(), 1);
  EXPECT_EQ(Threads(3).size(), 3);
  EXPECT_GE(Threads(0).size(), 1);
  EXPECT_THROW(Threads(-1), Error);
}

TEST(Threads, RunsEveryTaskOnceOnAKnownWorker) {
  for (const int num_threads : {1, 2, 5}) {
    Threads threads(num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
      std::atomic<int> strangers{0};
      threads.run(num_tasks, [&](int64_t task, int worker) {
        ++runs[static_cast<size_t>(task)];
        if (worker < 0 || worker >= threads.size()) ++strangers;
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_EQ(strangers, 0);
    }
  }
}

TEST(Threads, OneWorkerRunsOneTaskAtATime) {
  Threads threads(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> overlaps{0};
  threads.run(2000, [&](int64_t, int worker) {
    if (inside[static_cast<size_t>(worker)]++ != 0) ++overlaps;
    --inside[static_cast<size_t>(worker)];
  });
  EXPECT_EQ(overlaps, 0);
}

TEST(Threads, SurvivesManySmallRuns) {
  Threads threads(3);
  int64_t sum = 0;
  for (int run = 0; run < 5000; ++run) {
    std::array<int64_t, 4> parts{};  // each run must see its own stack, and all of it when it ends
    threads.run(4, [&](int64_t task, int) { parts[static_cast<size_t>(task)] = task + run; });
    sum += std::accumulate(parts.begin(), parts.end(), int64_t{0});
  }
  EXPECT_EQ(sum, 5000 * 6 + 4 * (4999 * 5000 / 2));
}

TEST(Threads, PoolsOfTasksNest) {
  Threads outer(2);
  std::atomic<int> runs{0};
  outer.run(6, [&](int64_t task, int) {
    Threads inner(static_cast<int>(task % 3) + 1);
    inner.run(10, [&](int64_t, int) { ++runs; });
  });
  EXPECT_EQ(runs, 60);
}

TEST(Threads, RethrowsOneExceptionAfterAllTasksAndGoesOn) {
  for (const int num_threads : {1, 4}) {
    Threads threads(num_threads);
    std::atomic<int> runs{0};
    const auto fail_on_multiples = [&](int64_t task, int) {
      ++runs;
      if (task % 10 == 3) throw std::runtime_error("task failed");
    };
    EXPECT_THROW(threads.run(100, fail_on_multiples), std::runtime_error);
    EXPECT_EQ(runs, 100);
    threads.run(100, [&](int64_t, int) { ++runs; });  // the failure is gone
    EXPECT_EQ(runs, 200);
  }
}

TEST(ParallelFor, CutsTheRangeByTheGrainAlone) {
  for (const int num_threads : {1, 4}) {
    Threads threads(num_threads);
    for (const int64_t count : {0, 1, 9, 10, 11, 95}) {
      std::vector<std::atomic<int64_t>> end_of(100);
      parallel_for(threads, count, 10,
                   [&](int64_t begin, int64_t end) { end_of[static_cast<size_t>(begin)] = end; });
      for (int64_t i = 0; i < 100; ++i)
        EXPECT_EQ(end_of[static_cast<size_t>(i)],
                  i < count && i % 10 == 0 ? std::min(count, i + 10) : 0);
    }
  }
}

TEST(ParallelFor, ReductionByTaskHasTheSameBitsForAnyThreadCount) {
  constexpr int64_t kCount = 10007, kGrain = 64;
  const auto sum_with = [](int num_threads) {
    Threads threads(num_threads);
    std::vector<float> partial((kCount + kGrain - 1) / kGrain);
    parallel_for(threads, kCount, kGrain, [&](int64_t begin, int64_t end) {
      float sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += std::sin(static_cast<float>(i));
      partial[static_cast<size_t>(begin / kGrain)] = sum;
    });
    return std::accumulate(partial.begin(), partial.end(), 0.0f);
  };
  const float alone = sum_with(1);
  for (const int num_threads : {2, 3, 8}) EXPECT_EQ(sum_with(num_threads), alone);
}

TEST(ParallelForDeathTest, RefusesAZeroGrain) {
  Threads threads(1);
  EXPECT_DEATH(parallel_for(threads, 5, 0, [](int64_t, int64_t) {}), "grain > 0");
}

}  // namespace
}  // namespace ashlar
