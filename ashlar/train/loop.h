// A run from start to end: resume, steps, evaluation, metrics, checkpoints, health, signals.
#pragma once

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

enum class Outcome : uint8_t {
  kDone,       // all steps are done
  kTimeUp,     // train.max_minutes passed; saved
  kPreempted,  // SIGTERM, SIGINT or SIGUSR1; saved
};

// Trains in recipe.train.run_dir: metrics.jsonl, tensorboard/, checkpoints/.  Continues by itself
// from the newest good
// step there.  Errors of every module; kNumeric once the budget of skipped steps is used up.
Outcome run_training(const Recipe& recipe, FileSystem& files, Log& log);

}  // namespace ashlar::train
