// How it works.  The factors are those whose simulated steps are nearest to the measured ones:
//
//   sum over runs (log simulated - log measured)^2 + kPrior sum over factors (log factor)^2
//
// A step is almost linear in the factors, so Gauss and Newton's method with differences for
// derivatives ends after a few rounds.  The prior keeps a factor at 1 that no run can tell, such as
// that of operations where nothing is sent.
#include "ashlar/plan/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/statistics.h"
#include "ashlar/sim/machine_costs.h"

namespace ashlar::plan {
namespace {

constexpr double kPrior = 1e-3, kDifference = 0.02, kMostOfAFactor = 4;
constexpr int kRounds = 4;

using Logs = std::array<double, sim::kCategories.size()>;  // of factors

class Fit {
 public:
  Fit(std::span<const CalibrationRun> runs, const MachineFile& machine,
      const SimulateOptions& options)
      : runs_(runs), machine_(machine), options_(options) {}

  double simulated_s(size_t run, const Logs& logs) {
    machine_.profile.calibration = machine::Calibration{};
    for (size_t i = 0; i < logs.size(); ++i)
      machine_.profile.calibration->factors[std::string(sim::kCategories[i])] = std::exp(logs[i]);
    return simulate_step(runs_[run].programs, machine_, options_).step_s;
  }

  // From all runs but one; left_out: its number, or -1.
  Logs factors(int left_out) {
    Logs logs{};
    for (int round = 0; round < kRounds; ++round) {
      double a = kPrior, b = 0, c = kPrior;  // normal equations [a b; b c] step = -[u v]
      double u = kPrior * logs[0], v = kPrior * logs[1];
      for (size_t run = 0; run < runs_.size(); ++run) {
        if (int(run) == left_out) continue;
        const double at = log_s(run, logs), error = at - std::log(runs_[run].measured_s);
        const double x = slope(run, logs, 0, at), y = slope(run, logs, 1, at);
        a += x * x, b += x * y, c += y * y;
        u += x * error, v += y * error;
      }
      const double determinant = a * c - b * b;
      logs[0] -= (c * u - b * v) / determinant;
      logs[1] -= (a * v - b * u) / determinant;
      for (double& log : logs)
        log = std::clamp(log, -std::log(kMostOfAFactor), std::log(kMostOfAFactor));
    }
    return logs;
  }

 private:
  double log_s(size_t run, const Logs& logs) { return std::log(simulated_s(run, logs)); }
  double slope(size_t run, Logs logs, size_t category, double at) {
    logs[category] += kDifference;
    return (log_s(run, logs) - at) / kDifference;
  }

  std::span<const CalibrationRun> runs_;
  MachineFile machine_;
  const SimulateOptions options_;
};

double error_of(double simulated_s, double measured_s) {
  return simulated_s / measured_s - 1;
}

}  // namespace

Calibrated calibrate(std::span<const CalibrationRun> runs, const MachineFile& machine,
                     const SimulateOptions& options) {
  constexpr size_t kFewestRuns = 3;
  ASHLAR_REQUIRE(runs.size() >= kFewestRuns, kConfig,
                 "{} layouts to calibrate with; expected {} or more: two factors are fitted",
                 runs.size(), kFewestRuns);
  static_assert(sim::kCategories.size() == 2);
  Fit fit(runs, machine, options);
  const Logs logs = fit.factors(-1);
  Calibrated result;
  for (size_t i = 0; i < logs.size(); ++i)
    result.calibration.factors[std::string(sim::kCategories[i])] = std::exp(logs[i]);
  double sum = 0, largest = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    CalibratedRun row{runs[run].layout, runs[run].measured_s, fit.simulated_s(run, {}),
                      fit.simulated_s(run, logs), fit.simulated_s(run, fit.factors(int(run)))};
    const double error = std::abs(error_of(row.left_out_s, row.measured_s));
    sum += error;
    largest = std::max(largest, error);
    result.calibration.layouts.push_back(row.layout);
    result.runs.push_back(std::move(row));
  }
  result.calibration.mean_error = sum / double(runs.size());
  result.calibration.largest_error = largest;
  return result;
}

std::string describe(const Calibrated& calibrated) {
  std::string text = fmt::format("{:>10} {:>10} {:>8} {:>10} {:>8} {:>10} {:>8}  {}\n", "measured",
                                 "before", "", "after", "", "left out", "", "layout");
  const auto cell = [](double simulated_s, double measured_s) {
    return fmt::format("{:>10.2f} {:>+6.1f} %", 1e3 * simulated_s,
                       100 * error_of(simulated_s, measured_s));
  };
  for (const CalibratedRun& run : calibrated.runs)
    text += fmt::format("{:>10.2f} {} {} {}  {}\n", 1e3 * run.measured_s,
                        cell(run.before_s, run.measured_s), cell(run.after_s, run.measured_s),
                        cell(run.left_out_s, run.measured_s),
                        run.layout.empty() ? "the recipe's own" : run.layout);
  text += "ms of a step, and errors; left out: forecast with the factors of the other layouts\n\n";
  for (const auto& [category, factor] : calibrated.calibration.factors)
    text += fmt::format("factor of {:<12} {:.3f}\n", category, factor);
  return text + fmt::format("error of layouts that were left out: mean {:.1f} %, largest {:.1f} %",
                            100 * calibrated.calibration.mean_error,
                            100 * calibrated.calibration.largest_error);
}

std::string to_json(const Calibrated& calibrated) {
  Ordered runs = Ordered::array();
  for (const CalibratedRun& run : calibrated.runs)
    runs.push_back({{"layout", run.layout},
                    {"measured_s", run.measured_s},
                    {"before_s", run.before_s},
                    {"after_s", run.after_s},
                    {"left_out_s", run.left_out_s}});
  Ordered factors = Ordered::object();
  for (const auto& [category, factor] : calibrated.calibration.factors) factors[category] = factor;
  return one_line({{"format", "ashlar-calibration-1"},
                   {"factors", factors},
                   {"mean_error", calibrated.calibration.mean_error},
                   {"largest_error", calibrated.calibration.largest_error},
                   {"commit", calibrated.calibration.commit},
                   {"runs", runs}});
}

}  // namespace ashlar::plan
