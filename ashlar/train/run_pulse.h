// The pulse of a run's ranks (core/pulse.h): the page, its record in the run directory, and the
// places that the trace of a step does not know.
//
// RUN_DIR/pulse/HOST names the directory of the pages on this host, for a reader on another one.
#pragma once

#include <string>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/core/pulse.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// Gives the rank a page.  Without one, such as in a full /dev/shm, the run trains all the same, and
// a warning says so.
void open_pulse(comm::Group& ranks, const Recipe& recipe, Log& log);
// To be called by one rank of each process, once the run directory exists.  A failure is a warning.
void record_pulse(FileSystem& files, const std::string& run_directory, Log& log);

inline void show(comm::Group& ranks, PulsePlace place) {
  if (PulseWriter* const pulse = ranks.trace().pulse()) pulse->enter(place);
}

}  // namespace ashlar::train
