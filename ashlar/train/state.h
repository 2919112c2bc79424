// A run's state as a checkpoint holds it, and back.  What is saved: weights and buffers (component
// model), optimizer and balancing state (optim), the loader's cursor (loader), and under extra/
// trainer.json (counters, health windows), recipe.toml, config.json, model.json and
// tokenizer.model.  The generators are counter-based: seed and step say all.
#pragma once

#include <string>

#include "ashlar/checkpoint/checkpointer.h"
#include "ashlar/data/loader_state.h"
#include "ashlar/train/health.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {

struct RunCounters {
  int64_t step = 0;  // optimizer steps done, skipped ones included
  int64_t samples = 0, tokens = 0;
  double seconds = 0.0;  // of training, all starts of the run together
};

std::string to_json(const RunCounters& counters, const Trainer& trainer, const HealthState& health);
struct TrainerState {
  RunCounters counters;
  int64_t optimizer_steps = 0, balancer_updates = 0;
  HealthState health;
};
// kCorrupt "WHAT: KEY ..." for anything that to_json does not write: a member that is missing,
// unknown or of another type, a number out of its range, a window that no health check has.
TrainerState parse_trainer_state(const std::string& json, const std::string& what);

// Builds save requests: what this rank writes of the state; rank 0 also everything else.  Owns what
// they point to.  One a run and rank.
class StateWriter {
 public:
  StateWriter(const Trainer& trainer, std::string tokenizer_bytes);
  // Valid until the next call.  Balancing biases and their moments are copied here: with
  // moe.balance.scope=micro_batch they move as soon as the next step begins.
  checkpoint::SaveRequest request(const RunCounters& counters, const HealthState& health,
                                  const data::LoaderState& loader);

 private:
  void copy_balancing();
  const Trainer& trainer_;
  std::string tokenizer_;
  struct Copy {
    Tensor live;
    std::vector<std::byte> bytes;
  };
  std::vector<Piece> model_, optim_, loader_;
  std::vector<Copy> copies_;          // what pieces of model_ and optim_ point to instead
  std::vector<LogicalTensor> whole_;  // rank 0's
  std::vector<data::NamedIntegers> arrays_;
};

// Fills what this rank of the trainer keeps from a step; returns counters and cursor.  When all
// ranks have, weights_changed() is to be called.  kConfig where the recipe's model or optimizer is
// not the saved one (the report names tensors).
struct Restored {
  RunCounters counters;
  HealthState health;
  data::LoaderState loader;
  std::string recipe;  // TOML
};
Restored restore(const checkpoint::StepReader& reader, Trainer& trainer);

}  // namespace ashlar::train
