#include "ashlar/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace ashlar::optim {
namespace {

OptimSpec spec_of(DecaySchedule schedule, int64_t warmup) {
  OptimSpec spec;
  spec.lr = 6e-4, spec.lr_min = 2e-4, spec.warmup_steps = warmup, spec.schedule = schedule;
  return spec;
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  for (const auto schedule :
       {DecaySchedule::kCosine, DecaySchedule::kLinear, DecaySchedule::kConstant}) {
    const OptimSpec spec = spec_of(schedule, 10);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 0, 110), 6e-5);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 4, 110), 3e-4);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 9, 110), 6e-4);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 10, 110), 6e-4);
  }
}

TEST(Schedule, CosineFallsFromThePeakToTheMinimum) {
  const OptimSpec spec = spec_of(DecaySchedule::kCosine, 10);
  // The last of 111 steps is number 110.  cos(pi/4), cos(pi/3), cos(pi/2) in closed form.
  EXPECT_NEAR(learning_rate(spec, 35, 111), 2e-4 + 2e-4 * (1 + std::sqrt(0.5)), 1e-16);
  EXPECT_NEAR(learning_rate(spec, 10 + 20, 10 + 61), 2e-4 + 4e-4 * 0.75, 1e-16);
  EXPECT_NEAR(learning_rate(spec, 60, 111), 4e-4, 1e-16);
  EXPECT_NEAR(learning_rate(spec, 5000, 111), 2e-4, 1e-16);
  for (int64_t t = 10; t < 110; ++t)
    EXPECT_LT(learning_rate(spec, t + 1, 111), learning_rate(spec, t, 111)) << t;
}

TEST(Schedule, LinearAndConstant) {
  const OptimSpec linear = spec_of(DecaySchedule::kLinear, 10);
  EXPECT_NEAR(learning_rate(linear, 35, 111), 5e-4, 1e-16);
  EXPECT_NEAR(learning_rate(linear, 85, 111), 3e-4, 1e-16);
  EXPECT_NEAR(learning_rate(linear, 111, 111), 2e-4, 1e-16);
  const OptimSpec constant = spec_of(DecaySchedule::kConstant, 10);
  for (const int64_t t : {10, 60, 109, 1000}) EXPECT_EQ(learning_rate(constant, t, 110), 6e-4);
}

// The ends are what the keys say, bit for bit where they are given.
TEST(Schedule, TheLastStepHasTheMinimum) {
  for (const auto schedule : {DecaySchedule::kCosine, DecaySchedule::kLinear})
    for (const auto& [steps, warmup] :
         {std::pair{10, 2}, {10, 0}, {3, 2}, {3, 1}, {2, 0}, {1, 0}, {1000, 999}, {12, 10}}) {
      const OptimSpec spec = spec_of(schedule, warmup);
      EXPECT_NEAR(learning_rate(spec, steps - 1, steps), spec.lr_min, 1e-19)
          << steps << " steps, warm-up " << warmup;
      if (warmup > 0) {
        EXPECT_EQ(learning_rate(spec, warmup - 1, steps), spec.lr);
      }
      if (warmup + 1 < steps) {
        EXPECT_EQ(learning_rate(spec, warmup, steps), spec.lr);
      }
    }
}

TEST(Schedule, FactorIsTheShareOfThePeak) {
  const OptimSpec spec = spec_of(DecaySchedule::kCosine, 10);
  EXPECT_DOUBLE_EQ(schedule_factor(spec, 0, 111), 0.1);
  EXPECT_DOUBLE_EQ(schedule_factor(spec, 10, 111), 1.0);
  EXPECT_NEAR(schedule_factor(spec, 110, 111), 1.0 / 3.0, 1e-15);
  OptimSpec still = spec;
  still.lr = still.lr_min = 0.0;
  EXPECT_EQ(schedule_factor(still, 50, 110), 0.0);
}

TEST(Schedule, WithoutWarmUpOrWithNothingElse) {
  const OptimSpec none = spec_of(DecaySchedule::kCosine, 0);
  EXPECT_EQ(learning_rate(none, 0, 100), 6e-4);
  EXPECT_NEAR(learning_rate(none, 50, 101), 4e-4, 1e-16);
  const OptimSpec all = spec_of(DecaySchedule::kCosine, 100);
  EXPECT_DOUBLE_EQ(learning_rate(all, 49, 50), 3e-4);
  EXPECT_DOUBLE_EQ(learning_rate(all, 99, 100), 6e-4);
}

}  // namespace
}  // namespace ashlar::optim
