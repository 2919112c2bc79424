#include "ashlar/plan/band.h"

namespace ashlar::plan {
namespace {

// The machine whose median times are the 10th or the 90th percentiles of this one.
MachineFile at_percentile(MachineFile machine, bool high) {
  for (machine::TimedKernel& kernel : machine.kernels)
    kernel.median_us = high ? kernel.p90_us : kernel.p10_us;
  for (machine::CollectiveCurve& curve : machine.profile.collectives)
    for (machine::CurvePoint& point : curve.points)
      point.median_us = high ? point.p90_us : point.p10_us;
  return machine;
}

}  // namespace

std::array<double, 2> step_band(const sim::RankPrograms& programs, const MachineFile& machine,
                                SimulateOptions options) {
  options.keep_spans = false;
  return {simulate_step(programs, at_percentile(machine, false), options).step_s,
          simulate_step(programs, at_percentile(machine, true), options).step_s};
}

}  // namespace ashlar::plan
