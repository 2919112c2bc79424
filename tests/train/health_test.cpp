#include "ashlar/train/health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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
