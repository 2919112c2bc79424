// Factors between simulated and real steps on one machine, from a few short runs.
//
// Tables and curves are measured with everything else at rest; a step has it all at once.  What
// that costs is fitted as one factor for kernels and one for operations, and stored in the profile
// (machine/profile.h); simulations on it multiply by them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/plan/simulate.h"

namespace ashlar::plan {

struct CalibrationRun {
  std::string layout;  // its keys
  sim::RankPrograms programs;
  double measured_s = 0;  // of a step
};

struct CalibratedRun {
  std::string layout;
  double measured_s = 0;
  double before_s = 0;    // simulated without factors
  double after_s = 0;     // with them
  double left_out_s = 0;  // with factors from the other runs alone: an honest forecast
};

struct Calibrated {
  machine::Calibration calibration;  // without date; errors are those of `left_out_s`
  std::vector<CalibratedRun> runs;
};

// A calibration in the profile counts for nothing.
// Errors   kConfig: fewer than 3 runs; those of simulate_step.
Calibrated calibrate(std::span<const CalibrationRun> runs, const MachineFile& machine,
                     const SimulateOptions& options);

std::string describe(const Calibrated& calibrated);
std::string to_json(const Calibrated& calibrated);

}  // namespace ashlar::plan
