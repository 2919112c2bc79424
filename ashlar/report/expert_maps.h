// The loads of a run's experts as heat maps, from its rows `expert_loads` (docs/metrics.md).
#pragma once

#include <vector>

#include "ashlar/report/page.h"
#include "ashlar/report/run_rows.h"

namespace ashlar::report {

// Blocks x experts over the second half of the run, if several blocks have experts; then one map of
// experts x steps for each block.  Few steps of very many experts are shown.
std::vector<HeatMap> expert_maps(const RunRows& rows);

}  // namespace ashlar::report
