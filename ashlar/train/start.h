// Puts a run on its ranks and trains: the processes that mpirun or srun started, or threads of this
// one.
#pragma once

#include <functional>
#include <string_view>

#include "ashlar/train/loop.h"

namespace ashlar::train {

struct Start {
  int num_ranks = 1;  // threads of this process, which share its CPUs and its memory limit
  // Tells why a rank of many processes failed; MPI then ends them all with its exit code.
  std::function<void(std::string_view message)> report;
};

// The first failure of a rank ends all.  Of threads it is thrown; of processes `report` is called on
// one, and nothing returns.
// Errors   those of run_training; kConfig where so many ranks cannot share the batch; kLaunch where
//          a launcher started many processes that cannot find each other.
Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, const Start& start = {});

}  // namespace ashlar::train
