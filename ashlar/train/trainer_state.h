// trainer.json of a checkpoint: counters of the run and of its optimizer, and the windows of the
// health check.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/train/health.h"

namespace ashlar::train {

struct RunCounters {
  int64_t step = 0;  // optimizer steps done, skipped ones included
  int64_t samples = 0, tokens = 0;
  double seconds = 0.0;  // of training, in all starts of the run
};

struct TrainerState {
  RunCounters counters;
  uint64_t seed = 0;  // for people; a resume reads the seed from recipe.toml and the loader's state
  int64_t optimizer_steps = 0, balancer_updates = 0;
  HealthState health;
};

std::string to_json(const TrainerState& state);
// kCorrupt "WHAT: KEY ..." for anything that to_json cannot write: a member that is missing,
// unknown or of another type, a number out of its range, a window that no health check has.
TrainerState parse_trainer_state(const std::string& json, const std::string& what);

}  // namespace ashlar::train
