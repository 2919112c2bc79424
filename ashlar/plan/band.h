// The band around a forecast: the step if every kernel and every operation took the 10th
// percentile of its measured times at once, and if all took the 90th.  Repeats of one kernel go up
// and down by themselves, so a step stays well inside, except where the whole machine is slower.
#pragma once

#include <array>

#include "ashlar/plan/simulate.h"

namespace ashlar::plan {

// Seconds of a step, low and high.  Laws, which have no percentiles, count as they are.
// Errors   those of simulate_step.
std::array<double, 2> step_band(const sim::RankPrograms& programs, const MachineFile& machine,
                                SimulateOptions options);

}  // namespace ashlar::plan
