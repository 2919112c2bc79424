// A run from start to end: resume, steps, evaluation, metrics, checkpoints, health, signals.
#pragma once

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/core/signals.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

class StartTiming;

enum class Outcome : uint8_t {
  kDone,       // all steps are done
  kTimeUp,     // train.max_minutes passed; saved
  kPreempted,  // SIGTERM, SIGINT, SIGUSR1 or SIGHUP; saved
};

// The arguments of one rank of the run.
struct RankResources {
  comm::Group& ranks;             // every rank of the run
  Allocator& allocator;           // of this rank; holds its share of train.memory_limit_mib
  int num_threads;                // of its kernels
  int local_ranks = 1;            // of the run on this machine
  int num_cpus = 1;               // that these share
  StartTiming* timing = nullptr;  // of rank 0, if it is wanted
  std::string placement = {};     // where the ranks are, for the log
};

// Trains in recipe.train.run_dir: metrics.jsonl, tensorboard/, checkpoints/, written by rank 0 and
// read by all.  Continues by itself from the newest good step there.  Every rank calls it and
// returns the same.  Errors of every module; kNumeric once the budget of skipped steps is used up.
Outcome run_training(const Recipe& recipe, FileSystem& files, Log& log, const StopSignals& signals,
                     const RankResources& resources);

}  // namespace ashlar::train
