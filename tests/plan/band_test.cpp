#include "ashlar/plan/band.h"

#include <gtest/gtest.h>

#include "tests/plan/small_machine.h"

namespace ashlar::plan {
namespace {

TEST(Band, LiesAroundTheForecastAndFollowsPercentiles) {
  Log log([](std::string_view) {});
  const auto programs = programs_of(tiny_recipe({"parallel.tp=2"}), DType::kF32, 2, log);
  MachineFile machine = small_machine();
  const double step_s = simulate_step(programs, machine, {}).step_s;
  const auto [low_s, high_s] = step_band(programs, machine, {});
  EXPECT_LT(low_s, step_s);
  EXPECT_GT(high_s, step_s);
  // Curves whose repeats agree leave no band: kernels are laws here.
  for (machine::CollectiveCurve& curve : machine.profile.collectives)
    for (machine::CurvePoint& point : curve.points) point.p10_us = point.p90_us = point.median_us;
  const auto [same_low_s, same_high_s] = step_band(programs, machine, {});
  EXPECT_EQ(same_low_s, step_s);
  EXPECT_EQ(same_high_s, step_s);
}

}  // namespace
}  // namespace ashlar::plan
