// Puts a run on its ranks and trains.
#pragma once

#include "ashlar/train/loop.h"

namespace ashlar::train {

// num_ranks threads of this process, which share its CPUs and train.memory_limit_mib.  The first
// failure of a rank ends all and is thrown.
// Errors   those of run_training; kConfig where the batch cannot be shared by so many ranks.
Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, int num_ranks = 1);

// kConfig: every rank takes the same number of whole streams and of whole micro-batches.
void check_ranks(const Recipe& recipe, int num_ranks);

}  // namespace ashlar::train
