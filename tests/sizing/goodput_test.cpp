// Shares of a failing run against published ones, and against runs played with random failures.
#include "ashlar/sizing/goodput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace ashlar::sizing {
namespace {

constexpr double kDay = 86400;

double useful(int64_t nodes, double restart_s, double interval_s) {
  FailingRun run;
  run.failures_per_s = double(nodes) / (264 * kDay);  // of Llama 3 405B: one in 264 node-days
  run.restart_s = restart_s;
  run.interval_s = interval_s;
  return goodput(run).useful;
}

TEST(Goodput, OfRunsThatFailAsLlama3Did) {
  EXPECT_NEAR(useful(128, 900, 1800), 0.990, 5e-4);
  EXPECT_NEAR(useful(128, 60, 300), 0.9987, 2e-4);
  EXPECT_NEAR(useful(2048, 900, 1800), 0.850, 5e-4);
  EXPECT_NEAR(useful(2048, 180, 600), 0.958, 5e-4);
  EXPECT_NEAR(useful(2048, 60, 300), 0.981, 5e-4);
  EXPECT_NEAR(useful(2048, 30, 120), 0.992, 5e-4);
}

// Plays a run with random failures until so much is trained: trains to the next save, waits for it,
// goes on while it is committed, and after a failure restarts from the newest committed save.
GoodputShares played(const FailingRun& run, double trained_s, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> until(run.failures_per_s);
  double now = 0, failure = until(random), position = 0, committed = 0;
  double pending = -1, pending_at = 0;  // the save that is being committed: its position, and when
  GoodputShares shares;
  while (committed < trained_s) {
    const double end = now + run.interval_s + run.save_wait_s;
    if (pending >= 0 && pending_at <= std::min(end, failure)) {
      committed = pending;
      pending = -1;
    }
    if (end <= failure) {
      position += run.interval_s;
      shares.saves += run.save_wait_s;
      now = end;
      pending = position;
      pending_at = now - run.save_wait_s + run.commit_s;
      continue;
    }
    position = committed;
    pending = -1;
    for (now = failure;; now = failure) {  // restarts until one comes through
      failure = now + until(random);
      shares.restarts += std::min(failure - now, run.restart_s);
      if (failure > now + run.restart_s) break;
    }
    now += run.restart_s;
  }
  shares.useful = position / now;
  shares.saves /= now;
  shares.restarts /= now;
  shares.recomputed = 1 - shares.useful - shares.saves - shares.restarts;
  return shares;
}

void expect_near_played(const FailingRun& run, double tolerance) {
  const GoodputShares formula = goodput(run), real = played(run, 3e4 * run.interval_s, 7);
  EXPECT_NEAR(formula.useful, real.useful, tolerance);
  EXPECT_NEAR(formula.restarts, real.restarts, tolerance);
  EXPECT_NEAR(formula.saves, real.saves, tolerance);
  EXPECT_NEAR(formula.useful + formula.saves + formula.restarts + formula.recomputed, 1, 1e-12);
}

TEST(Goodput, IsThatOfRunsPlayedThrough) {
  expect_near_played({1e-4, 600, 0, 0, 60}, 0.005);
  expect_near_played({1e-3, 600, 20, 0, 100}, 0.01);  // every second piece fails
  expect_near_played({1e-4, 600, 5, 120, 60}, 0.005);
}

TEST(Goodput, IsHighestAtTheBestInterval) {
  for (const double rate : {1e-6, 1e-4, 1e-3}) {
    FailingRun run{rate, 0, 1, 0, 60};
    const double best = best_interval(run);
    EXPECT_NEAR(best / std::sqrt(2 * 1 / rate), 1, 0.1) << rate;  // the well-known first order
    const auto useful_at = [&](double interval_s) {
      run.interval_s = interval_s;
      return goodput(run).useful;
    };
    EXPECT_GT(useful_at(best), useful_at(best * 1.1));
    EXPECT_GT(useful_at(best), useful_at(best / 1.1));
  }
  EXPECT_EQ(best_interval({1e-4, 0, 0.001, 500, 60}), 500);  // saves do not overlap
}

TEST(Goodput, SparesCoverWhatIsAwayAtOnce) {
  // 0.5 nodes are away on average: none 60.7 % of the time, at most 3 99.8, at most 4 99.98.
  EXPECT_EQ(spares_for(0.5 / 3600, 3600, 0.6), 0);
  EXPECT_EQ(spares_for(0.5 / 3600, 3600, 0.998), 3);
  EXPECT_EQ(spares_for(0.5 / 3600, 3600, 0.999), 4);
  // A thousand deviate by 31.6, and 99.9 % of a normal distribution lie below 3.09 deviations.
  EXPECT_NEAR(double(spares_for(1000.0 / 3600, 3600, 0.999)), 1000 + 3.09 * std::sqrt(1000), 5);
}

}  // namespace
}  // namespace ashlar::sizing
