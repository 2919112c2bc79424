#include "ashlar/train/health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "ashlar/core/error.h"

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

TEST(Health, SpikesAreSkippedOnceTheWindowIsFull) {
  Health health(spec());
  EXPECT_TRUE(health.judge(0, 1e6, 1.0).apply);  // no verdict yet
  Health fresh(spec());
  for (int64_t step = 0; step < 16; ++step)
    EXPECT_TRUE(fresh.judge(step, noisy(step), noisy(step)).apply);
  const Verdict bad = fresh.judge(16, 30.0, 3.0);
  EXPECT_FALSE(bad.apply);
  EXPECT_NE(bad.reason.find("loss 30"), std::string::npos) << bad.reason;
  EXPECT_TRUE(fresh.judge(17, 3.0, 3.0).apply);  // the spike did not enter the window
  EXPECT_FALSE(fresh.judge(18, 3.0, 300.0).apply);
  EXPECT_EQ(fresh.skipped(), 2);
  EXPECT_EQ(fresh.non_finite(), 0);
}

// Sixteen values of mean 2 and deviation exactly 1: what is `off` above the mean has z = off.
TEST(Health, LossAndGradientNormAreJudgedAtMaxZ) {
  for (const double max_z : {6.0, 2.5}) {
    for (const auto& [loss_off, norm_off, apply, culprit] :
         {std::tuple{max_z, 0.0, true, ""},
          {0.0, max_z, true, ""},
          {max_z, max_z, true, ""},
          {max_z + 0.01, 0.0, false, "loss "},
          {0.0, max_z + 0.01, false, "gradient norm "},
          {max_z + 0.01, max_z + 0.01, false, "loss "},
          {-100.0, -100.0, true, ""}}) {
      HealthSpec s = spec();
      s.max_z = max_z;
      Health health(s);
      for (int64_t step = 1; step <= 16; ++step) {
        const double value = step % 2 == 0 ? 1.0 : 3.0;
        ASSERT_TRUE(health.judge(step, value, value).apply);
      }
      const Verdict verdict = health.judge(17, 2.0 + loss_off, 2.0 + norm_off);
      EXPECT_EQ(verdict.apply, apply) << max_z << ": " << loss_off << ", " << norm_off;
      EXPECT_TRUE(verdict.reason.starts_with(culprit)) << verdict.reason;
      EXPECT_EQ(verdict.reason.empty(), apply);
    }
  }
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

TEST(Health, SkipsInARowAreCountedToTheBudget) {
  for (const int64_t allowed : {1, 2, 5}) {
    HealthSpec s = spec();
    s.max_consecutive_skips = allowed;
    s.max_skips_per_1000 = 1000;
    Health health(s);
    for (int64_t step = 1; step < allowed; ++step) {
      health.judge(step, std::nan(""), 1.0);
      EXPECT_NO_THROW(health.check_budget()) << allowed;
    }
    health.judge(50, 1.0, 1.0);  // a good step begins the count anew
    for (int64_t step = 51; step < 51 + allowed; ++step) {
      EXPECT_NO_THROW(health.check_budget()) << allowed;
      health.judge(step, std::nan(""), 1.0);
    }
    EXPECT_THROW(health.check_budget(), Error) << allowed;
  }
}

// Step 1000 still counts skipped step 1; step 1001 does not.
TEST(Health, ASkipIsForgottenAfterAThousandSteps) {
  for (const int64_t last : {1000, 1001}) {
    HealthSpec s = spec();
    s.max_skips_per_1000 = 2;
    Health health(s);
    health.judge(1, std::nan(""), 1.0);
    health.judge(2, 1.0, 1.0);
    health.judge(last, std::nan(""), 1.0);
    if (last == 1000)
      EXPECT_THROW(health.check_budget(), Error);
    else
      EXPECT_NO_THROW(health.check_budget());
  }
}

TEST(Health, NonFiniteIsSkippedAndCounted) {
  Health health(spec());
  EXPECT_FALSE(health.judge(0, std::numeric_limits<double>::quiet_NaN(), 1.0).apply);
  EXPECT_FALSE(health.judge(1, 1.0, std::numeric_limits<double>::infinity()).apply);
  EXPECT_EQ(health.non_finite(), 2);
  EXPECT_NO_THROW(health.check_budget());
  EXPECT_FALSE(health.judge(2, std::nan(""), 1.0).apply);
  try {
    health.check_budget();
    FAIL() << "three skips in a row pass the budget";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNumeric);
  }
}

TEST(Health, TenInAThousandPassTheBudget) {
  Health health(spec());
  for (int64_t step = 0; step < 900; ++step) {
    health.judge(step, step % 90 == 5 ? std::nan("") : noisy(step), noisy(step));
    if (step < 9 * 90 + 5) {
      EXPECT_NO_THROW(health.check_budget()) << step;
    }
  }
  EXPECT_THROW(health.check_budget(), Error);
  for (int64_t step = 900; step < 1100; ++step) health.judge(step, noisy(step), noisy(step));
  EXPECT_NO_THROW(health.check_budget());  // the oldest fell out of the last 1000 steps
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
  EXPECT_EQ(a.skipped(), b.skipped());
  EXPECT_EQ(a.state().losses, b.state().losses);
}

}  // namespace
}  // namespace ashlar::train
