// Schedules as pictures: the actions of every stage over time.  Forward and the inputs' and
// weights' parts of backward take a unit of time each, transfers none.
#pragma once

#include <string>

#include "ashlar/parallel/schedule.h"

namespace ashlar::parallel {

// A row for each stage, with a cell for each unit of time (the forward of one chunk), followed by
// the bubble and the slots of each stage.  F3 is the forward of micro-batch 3, B3 its backward, W3
// the weights' part; with several chunks F3a is the forward of the first; '.' is idle time.
std::string describe_schedule(Schedule schedule, int num_stages, int num_chunks,
                              int64_t micro_batches);
// The same rows as a drawing: the text of an SVG file.
std::string schedule_svg(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches);

}  // namespace ashlar::parallel
