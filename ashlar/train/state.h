// A run's state as a checkpoint holds it, and back.  A step holds weights and buffers (component
// model), optimizer and balancing state (optim), the loader's cursor (loader), and under extra/
// trainer.json (counters, health windows), recipe.toml, config.json, model.json and the model's
// companions (models/companions.h).  Frozen tensors are not in it: base_model.json names the
// model that has them.  Random generators are counter-based, so that seed and step are their whole
// state.
#pragma once

#include <optional>
#include <string>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/checkpoint/save/node_snapshot.h"
#include "ashlar/data/loader_state.h"
#include "ashlar/models/base_model.h"
#include "ashlar/models/companions.h"
#include "ashlar/train/run_companions.h"
#include "ashlar/train/trainer.h"
#include "ashlar/train/trainer_state.h"

namespace ashlar::train {

// Builds save requests with the part of the state that this rank writes; rank 0's have everything
// else too.  Owns the memory to which they point.  A run has one on each rank.  For a trainer on
// meta the requests have sizes only.
class StateWriter {
 public:
  // isa: the instruction sets of the ranks' kernels, for the manifest.
  StateWriter(const Trainer& trainer, models::Companions companions, std::string isa);
  // Valid from the next request on.
  void take(models::Companions companions) { companions_ = std::move(companions); }
  // The model that has the tensors that the run freezes; valid from the next request on.
  void take(models::BaseModel base) { base_ = std::move(base); }
  // The part of model and optimizer that this rank writes; the data live as long as this object.
  checkpoint::NodeShare share() const { return {model_, optim_}; }
  // Valid until the next call.  Balancing biases and their moments are copied here: with
  // moe.balance.scope=micro_batch they move as soon as the next step begins.  A GPU copies them to
  // memory of its own, and nothing waits for that.
  checkpoint::SaveRequest request(const RunCounters& counters, const HealthState& health,
                                  const data::LoaderState& loader);

 private:
  void copy_balancing();
  const Trainer& trainer_;
  models::Companions companions_;
  std::optional<models::BaseModel> base_;  // absent: all tensors are trained
  std::string isa_;
  struct Copy {
    Tensor live;
    std::vector<std::byte> bytes;
  };
  std::vector<Piece> model_, optim_, loader_;
  struct KeptOnDevice {
    Tensor live, copy;
  };
  // Pieces of model_ and optim_ point to these instead.
  std::vector<Copy> copies_;
  std::vector<KeptOnDevice> kept_;
  std::vector<LogicalTensor> whole_;  // rank 0's
  std::vector<data::NamedIntegers> arrays_;
};

// Adds an empty piece for every tensor without one, because only other ranks keep it, so that a
// strict load checks names, types and shapes of all tensors.
void add_what_others_keep(std::vector<LogicalTensor> whole, std::vector<Piece>& pieces);

// Fills the tensors that this rank of the trainer keeps from a step; returns counters and cursor.
// weights_changed() is to be called when all ranks have returned.  A state of another
// train.precision is converted: F32 to F64 without loss, F64 to F32 rounded.  kConfig if the
// recipe's model or optimizer is not the saved one (the report names tensors), or if the step is
// imported and holds only weights.
struct Restored {
  RunCounters counters;
  HealthState health;
  data::LoaderState loader;
  std::string recipe;         // TOML
  std::string isa;            // the kernels'; "": written by an older program
  int64_t num_converted = 0;  // tensors that the step stores in another type
  Inherited inherited{};
};
// base: the model that has the frozen tensors; kConfig if the step was made with another one.
Restored restore(const checkpoint::StepReader& reader, Trainer& trainer,
                 const std::optional<models::BaseModel>& base = {});

}  // namespace ashlar::train
