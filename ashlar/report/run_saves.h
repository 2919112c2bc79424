// The saves of runs: how long each phase took, and on which rank it took longest.
#pragma once

#include <span>

#include "ashlar/report/page.h"
#include "ashlar/report/run_page.h"

namespace ashlar::report {

PageSection saves_section(std::span<const RecordedRun> runs);

}  // namespace ashlar::report
