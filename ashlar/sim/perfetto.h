// A replay as a JSON file in Chrome's trace-event format, which Perfetto opens: a process a rank,
// with the threads of a trace file (docs/formats/trace.md): compute, and one a lane.
#pragma once

#include <string>

#include "ashlar/sim/replay.h"

namespace ashlar::sim {

// replayed: with spans.
std::string to_chrome_json(const RankPrograms& programs, const Replayed& replayed);

}  // namespace ashlar::sim
