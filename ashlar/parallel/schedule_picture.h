// Schedules as pictures: what every stage does at what time, where forward, the inputs' and the
// weights' part of backward take a unit of time each and transfers none.
#pragma once

#include <string>

#include "ashlar/parallel/schedule.h"

namespace ashlar::parallel {

// A row for each stage and a cell for each unit, which is a forward of one chunk, followed by the
// bubble and the slots of each stage.  F3 is the forward of micro-batch 3, B3 its backward, W3 the
// weights' part; with several chunks F3a is that of the first; '.' is idle time.
std::string describe_schedule(Schedule schedule, int num_stages, int num_chunks,
                              int64_t micro_batches);
// The rows as a drawing, of a whole file.
std::string schedule_svg(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches);

}  // namespace ashlar::parallel
