#include "ashlar/train/health.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace ashlar::train {
namespace {

HealthSpec spec() {
  HealthSpec s;
  s.window = 16;
  return s;
}

double noisy(int64_t step) {
  return 3.0 + 0.1 * std::sin(double(step));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// After a full window whose largest loss and norm are 3.
Health after_window(const HealthSpec& s) {
  Health health(s);
  for (int64_t step = 1; step <= s.window; ++step) {
    const double value = step == 5 ? 3.0 : 2.0 + 0.01 * double(step % 7);
    EXPECT_TRUE(health.judge(step, value, value).apply);
  }
  return health;
}

TEST(Health, LossAndGradientNormAreJudgedByTheLargestOfTheWindow) {
  for (const auto& [ratio, rise] : {std::pair{3.0, 1.0}, {1.5, 0.25}, {1e-6, 1e9}, {1e9, 0.0}}) {
    HealthSpec s = spec();
    s.max_norm_ratio = ratio;
    s.max_loss_rise = rise;
    const double loss = 3.0 + rise, norm = 3.0 * ratio;  // the largest that are no spike
    for (const auto& [l, n, culprit] : {std::tuple{loss, norm, ""},
                                        {loss * 1.001, norm, "loss "},
                                        {loss, norm * 1.001, "gradient norm "},
                                        {loss * 1.001, norm * 1.001, "loss "},
                                        {-100.0, 0.0, ""}}) {
      Health health = after_window(s);
      const StepVerdict verdict = health.judge(17, l, n);
      EXPECT_EQ(verdict.apply, *culprit == 0) << ratio << " " << rise << ": " << l << ", " << n;
      EXPECT_EQ(verdict.reason.empty(), verdict.apply);
      EXPECT_TRUE(verdict.reason.starts_with(culprit)) << verdict.reason;
      EXPECT_EQ(verdict.level, "");
    }
  }
}

TEST(Health, AListedStepSpendsNoBudget) {
  HealthSpec limits = spec();
  limits.max_consecutive_skips = 100;
  limits.max_skips_per_1000 = 2;
  Health before(limits);
  for (const int64_t step : {3, 9}) before.judge(step, NAN, 1);
  EXPECT_NE(before.over_budget(), "");
  Health health(limits);
  health.restore(before.state());
  health.pass({9, {36}});
  health.judge(10, 1, 1);
  EXPECT_EQ(health.over_budget(), "");
  EXPECT_EQ(health.state().recent_skips, std::vector<int64_t>{3});
  health.judge(11, NAN, 1);
  EXPECT_NE(health.over_budget(), "") << "step 3 is not listed";
}

TEST(Health, PassesStepsWithHarmfulSamples) {
  Health before(spec());
  before.pass({3, {12, 9}});
  Health health(spec());
  health.restore(before.state());
  health.pass({5, {9, 30}});
  EXPECT_EQ(health.state().harmful, (std::vector<int64_t>{9, 12, 30}));
  for (const auto& [first, passes] : {std::pair{0, false},
                                      {5, false},
                                      {6, true},
                                      {9, true},
                                      {13, false},
                                      {28, true},
                                      {31, false}})
    EXPECT_EQ(health.passes(first, 4), passes) << first;
}

TEST(Health, ASkipNamesTheKeyThatDecided) {
  EXPECT_EQ(after_window(spec()).judge(17, 3.0, 9.5).reason,
            "gradient norm 9.5 is more than 3 (health.max_norm_ratio) times the largest of the "
            "last 16 steps, 3");
  EXPECT_EQ(after_window(spec()).judge(17, 4.5, 3.0).reason,
            "loss 4.5 is more than 1 (health.max_loss_rise) above the largest of the last 16 "
            "steps, 3");
  EXPECT_EQ(after_window(spec()).judge(17, kNan, 3.0).reason, "loss is nan, gradient norm is 3");
}

// The last value before the window is full is judged by none.
TEST(Health, TheWindowIsFullAfterItsSize) {
  for (const bool full : {false, true}) {
    Health health(spec());
    for (int64_t step = 1; step <= (full ? 16 : 15); ++step)
      health.judge(step, noisy(step), noisy(step));
    EXPECT_EQ(health.judge(17, 30.0, 3.0).apply, !full);
  }
}

// A value that comes again is no spike: that of the skipped step is in the window.
TEST(Health, ASecondSpikeOfTheSameHeightIsANewLevel) {
  Health health = after_window(spec());
  EXPECT_FALSE(health.judge(17, 3.0, 300.0).apply);
  const StepVerdict second = health.judge(18, 3.0, 310.0);
  EXPECT_TRUE(second.apply);
  EXPECT_EQ(second.level,
            "gradient norm 310 is more than 3 (health.max_norm_ratio) times the largest before the "
            "skip, 3");
  EXPECT_EQ(health.judge(19, 3.0, 320.0).level, "") << "said once";
  EXPECT_EQ(health.skipped(), 1);
  EXPECT_EQ(health.over_budget(), "");
  // Sixteen steps later the window has forgotten it.
  for (int64_t step = 20; step < 36; ++step) EXPECT_EQ(health.judge(step, 3.0, 3.0).level, "");
  EXPECT_FALSE(health.judge(36, 3.0, 300.0).apply);
}

TEST(Health, ALevelIsComparedWithWhatWasBeforeTheWholeRowOfSkips) {
  Health health = after_window(spec());
  EXPECT_FALSE(health.judge(17, 5.0, 3.0).apply);
  EXPECT_FALSE(health.judge(18, kNan, 3.0).apply);
  EXPECT_FALSE(health.judge(19, 7.0, 3.0).apply);
  const StepVerdict level = health.judge(20, 6.5, 3.0);
  EXPECT_TRUE(level.apply);
  EXPECT_EQ(level.level,
            "loss 6.5 is more than 1 (health.max_loss_rise) above the largest before the skip, 3");
}

TEST(Health, ASpikeAloneIsNoLevel) {
  Health health = after_window(spec());
  EXPECT_FALSE(health.judge(17, 3.0, 30.0).apply);
  EXPECT_EQ(health.judge(18, 3.0, 3.0).level, "");
  EXPECT_EQ(health.judge(19, 3.0, 30.0).level, "") << "another one, which the window knows";
}

TEST(Health, NonFiniteStepsInARowAreCountedToTheBudget) {
  for (const int64_t allowed : {1, 2, 5}) {
    HealthSpec s = spec();
    s.max_consecutive_skips = allowed;
    s.max_skips_per_1000 = 1000;
    Health health(s);
    for (int64_t step = 1; step < allowed; ++step) {
      health.judge(step, kNan, 1.0);
      EXPECT_EQ(health.over_budget(), "") << allowed;
    }
    health.judge(50, 1.0, 1.0);  // a finite step begins the count anew
    for (int64_t step = 51; step < 51 + allowed; ++step) {
      EXPECT_EQ(health.over_budget(), "") << allowed;
      health.judge(step, 1.0, std::numeric_limits<double>::infinity());
    }
    EXPECT_EQ(health.over_budget(),
              fmt::format("{} steps in a row were skipped because they were not finite "
                          "(health.max_consecutive_skips): lower optim.lr or look at the samples "
                          "named above",
                          allowed));
  }
}

// Losses that rise by more than the limit every time are skipped every time.
TEST(Health, FiniteSpikesInARowAreCountedToTheBudgetOfAThousand) {
  HealthSpec s = spec();
  s.max_consecutive_skips = 1;
  s.max_skips_per_1000 = 6;
  Health health = after_window(s);
  for (int64_t i = 1; i <= 6; ++i) {
    EXPECT_EQ(health.over_budget(), "") << i;
    EXPECT_FALSE(health.judge(16 + i, 3.0 + 2.0 * double(i), 3.0).apply);
  }
  EXPECT_EQ(health.skipped(), 6);
  EXPECT_EQ(health.non_finite(), 0);
  EXPECT_TRUE(health.over_budget().starts_with(
      "6 of the last 1000 steps were skipped (health.max_skips_per_1000): "))
      << health.over_budget();
}

// Step 1000 still counts skipped step 1; step 1001 does not.
TEST(Health, ASkipIsForgottenAfterAThousandSteps) {
  for (const int64_t last : {1000, 1001}) {
    HealthSpec s = spec();
    s.max_skips_per_1000 = 2;
    Health health(s);
    health.judge(1, kNan, 1.0);
    health.judge(2, 1.0, 1.0);
    health.judge(last, kNan, 1.0);
    EXPECT_EQ(health.over_budget().empty(), last == 1001);
  }
}

TEST(Health, NonFiniteIsSkippedAndCounted) {
  Health health(spec());
  EXPECT_FALSE(health.judge(0, kNan, 1.0).apply);
  EXPECT_FALSE(health.judge(1, 1.0, std::numeric_limits<double>::infinity()).apply);
  EXPECT_EQ(health.non_finite(), 2);
  EXPECT_EQ(health.state().losses, std::vector<double>{}) << "the window takes finite values only";
}

TEST(Health, TenInAThousandPassTheBudget) {
  Health health(spec());
  for (int64_t step = 0; step < 900; ++step) {
    health.judge(step, step % 90 == 5 ? kNan : noisy(step), noisy(step));
    if (step < 9 * 90 + 5) {
      EXPECT_EQ(health.over_budget(), "") << step;
    }
  }
  EXPECT_NE(health.over_budget(), "");
  for (int64_t step = 900; step < 1100; ++step) health.judge(step, noisy(step), noisy(step));
  EXPECT_EQ(health.over_budget(), "");  // the oldest fell out of the last 1000 steps
}

TEST(Health, RestoredStateJudgesAlike) {
  Health a(spec());
  for (int64_t step = 0; step < 20; ++step) a.judge(step, noisy(step), noisy(step));
  Health b(spec());
  b.restore(a.state());
  for (int64_t step = 20; step < 60; ++step) {
    const double loss = step == 40 ? 50.0 : noisy(step);
    EXPECT_EQ(a.judge(step, loss, noisy(step)).apply, b.judge(step, loss, noisy(step)).apply)
        << step;
  }
  EXPECT_EQ(a.skipped(), 1);
  EXPECT_EQ(b.skipped(), 1);
  EXPECT_EQ(a.state().losses, b.state().losses);
}

// ---- values with long tails, as healthy runs of small batches have

// Standard normal, by Box and Muller: the same numbers with every library.
double normal(std::mt19937_64& bits) {
  const auto uniform = [&] { return (double(bits() >> 11) + 0.5) * 0x1p-53; };
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

struct StepValues {
  double loss, norm;
};

// A loss that falls from 5 to 2 with rare documents that are harder, and log-normal norms.
std::vector<StepValues> long_tailed(uint64_t seed, int64_t steps) {
  std::mt19937_64 bits(seed);
  std::vector<StepValues> values;
  for (int64_t step = 0; step < steps; ++step) {
    const double rare = std::max(0.0, normal(bits) - 1.5);
    const double loss =
        2.0 + 3.0 * std::exp(-double(step) / 150.0) + 0.1 * normal(bits) + 0.3 * rare;
    values.push_back({loss, std::exp(0.4 * normal(bits))});
  }
  return values;
}

constexpr int64_t kRuns = 7, kSteps = 800;

TEST(Health, HealthyRunsWithLongTailsGoOn) {
  int64_t six_deviations = 0;
  for (int64_t run = 0; run < kRuns; ++run) {
    Health health{HealthSpec{}};
    const std::vector<StepValues> values = long_tailed(uint64_t(run), kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      const StepVerdict verdict =
          health.judge(step + 1, values[size_t(step)].loss, values[size_t(step)].norm);
      EXPECT_TRUE(verdict.apply) << "run " << run << ", step " << step << ": " << verdict.reason;
      if (step < 128) continue;
      double mean = 0.0, squares = 0.0;
      for (int64_t i = step - 128; i < step; ++i) mean += values[size_t(i)].norm / 128.0;
      for (int64_t i = step - 128; i < step; ++i)
        squares += (values[size_t(i)].norm - mean) * (values[size_t(i)].norm - mean) / 128.0;
      six_deviations += values[size_t(step)].norm > mean + 6.0 * std::sqrt(squares);
    }
  }
  EXPECT_GE(six_deviations, 2) << "values without the long tail that this test is about";
}

// A fault is put into each healthy run at twelve places, each time alone.
TEST(Health, FaultsAreFound) {
  for (const auto& [factor, least] : {std::pair{256.0, 84}, {30.0, 82}}) {
    int64_t found = 0;
    for (int64_t run = 0; run < kRuns; ++run) {
      const std::vector<StepValues> values = long_tailed(uint64_t(run), kSteps);
      for (int64_t place = 0; place < 12; ++place) {
        const int64_t fault = 140 + 55 * place;
        Health health{HealthSpec{}};
        for (int64_t step = 0; step < fault; ++step)
          health.judge(step + 1, values[size_t(step)].loss, values[size_t(step)].norm);
        const auto& [loss, norm] = values[size_t(fault)];
        found += !health.judge(fault + 1, loss, factor * norm).apply;
      }
    }
    EXPECT_GE(found, least) << "norms x " << factor;
  }
  for (const double rise : {2.0, 4.0}) {
    Health health{HealthSpec{}};
    const std::vector<StepValues> values = long_tailed(1, kSteps);
    for (int64_t step = 0; step < 500; ++step)
      health.judge(step + 1, values[size_t(step)].loss, values[size_t(step)].norm);
    EXPECT_FALSE(health.judge(501, values[500].loss + rise, values[500].norm).apply) << rise;
  }
}

}  // namespace
}  // namespace ashlar::train
