// Factors of kernels and operations, found again from steps that were simulated with them.
#include "ashlar/plan/calibrate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "tests/plan/small_machine.h"
#include "tests/support/errors.h"

namespace ashlar::plan {
namespace {

using ashlar::testing_support::message_of;

MachineFile with_factors(double kernels, double operations) {
  MachineFile machine = small_machine();
  machine.profile.calibration = machine::Calibration{};
  machine.profile.calibration->factors = {{"kernels", kernels}, {"operations", operations}};
  return machine;
}

std::vector<CalibrationRun> runs_on(const MachineFile& truth) {
  Log log([](std::string_view) {});
  std::vector<CalibrationRun> runs;
  for (const std::string keys : {"parallel.zero=0", "parallel.zero=1", "parallel.tp=2",
                                 "parallel.zero=1 parallel.overlap=false"}) {
    CalibrationRun run{keys, programs_of(tiny_recipe(split(keys, ' ')), DType::kF32, 2, log), 0};
    run.measured_s = simulate_step(run.programs, truth, {}).step_s;
    runs.push_back(std::move(run));
  }
  return runs;
}

TEST(Calibrate, FactorsScaleTheTimesOfKernelsAndOperations) {
  const auto runs = runs_on(small_machine());
  const double step_s = runs[2].measured_s;
  // All times twice as long: the whole step is.
  EXPECT_NEAR(simulate_step(runs[2].programs, with_factors(2, 2), {}).step_s, 2 * step_s,
              1e-9 * step_s);
  EXPECT_GT(simulate_step(runs[2].programs, with_factors(1, 2), {}).step_s, step_s);
  EXPECT_GT(simulate_step(runs[2].programs, with_factors(2, 1), {}).step_s, step_s);
}

TEST(Calibrate, FindsTheFactorsOfSimulatedRuns) {
  const auto runs = runs_on(with_factors(1.2, 0.7));
  const Calibrated found = calibrate(runs, small_machine(), {});
  // The prior pulls a little towards 1.
  EXPECT_NEAR(found.calibration.factors.at("kernels"), 1.2, 0.02);
  EXPECT_NEAR(found.calibration.factors.at("operations"), 0.7, 0.05);
  EXPECT_LT(found.calibration.largest_error, 0.05);
  ASSERT_EQ(found.runs.size(), 4u);
  EXPECT_EQ(found.calibration.layouts[2], "parallel.tp=2");
  for (const CalibratedRun& run : found.runs) {
    EXPECT_GT(std::abs(run.before_s / run.measured_s - 1), 0.03) << run.layout;
    EXPECT_LT(std::abs(run.after_s / run.measured_s - 1), 0.02) << run.layout;
  }
}

TEST(Calibrate, AnErrorIsThatOfALayoutWhoseFactorsAreFromOthers) {
  auto runs = runs_on(small_machine());
  runs[3].measured_s *= 1.5;
  const Calibrated found = calibrate(runs, small_machine(), {});
  const CalibratedRun& odd = found.runs[3];
  EXPECT_NEAR(odd.left_out_s / odd.measured_s - 1, 1 / 1.5 - 1, 0.01);
  EXPECT_GE(found.calibration.largest_error, std::abs(odd.left_out_s / odd.measured_s - 1));
  EXPECT_LT(std::abs(odd.after_s / odd.measured_s - 1), 0.3);  // it pulls its own factors
}

TEST(Calibrate, AnEarlierCalibrationCountsForNothing) {
  const auto runs = runs_on(with_factors(1.1, 1.3));
  const Calibrated fresh = calibrate(runs, small_machine(), {}),
                   again = calibrate(runs, with_factors(3, 3), {});
  EXPECT_EQ(fresh.calibration.factors, again.calibration.factors);
}

TEST(Calibrate, SaysWhatItFound) {
  const Calibrated found = calibrate(runs_on(with_factors(1.2, 0.7)), small_machine(), {});
  EXPECT_NE(describe(found).find("factor of kernels"), std::string::npos);
  const Json json = parse_json(to_json(found), "calibration", ErrorKind::kData);
  EXPECT_EQ(json["runs"].size(), 4u);
  EXPECT_EQ(json["factors"]["kernels"], found.calibration.factors.at("kernels"));
  EXPECT_NE(message_of(ErrorKind::kConfig, [] { calibrate({}, small_machine(), {}); })
                .find("expected 3 or more"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::plan
