// A model in training with its optimizer: all memory of a run except the communication's, and the
// parts of a step.
//
//   run       runs forward and backward of every micro-batch; adds up gradients and expert counts,
//             and begins to sum them over the ranks
//   reduce    waits for those sums
//   measure   gives mean loss, gradient norm, and loads of the experts, for which the host waits
//             once
//   apply     clips, updates weights and balancing biases, and begins to gather new weights; or
//   skip
//
// Everything that depends on the mesh is in parallel::RankModel (rank_model.h), which also states
// the order in which ranks call.  This class has the parts that all layouts share: rates, clipping,
// balancing, the numbers of a step.
//
// The same object on the meta device is the dry run: it counts the same bytes.  Kernels and
// operations of ranks are recorded in the trace of `ranks` (comm::Group::trace) once it is started.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/optim/balance.h"
#include "ashlar/optim/optimizer.h"
#include "ashlar/parallel/rank_model.h"
#include "ashlar/parallel/zero.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/compute_device.h"

namespace ashlar::train {

using parallel::LossSum;
using parallel::MicroBatch;

struct StepStats {
  double loss = 0.0;                    // mean over the targets of the step; NaN without any
  double aux_loss = 0.0, z_loss = 0.0;  // the routers', with their coefficients; not in loss
  double expert_rounds = 0.0;           // with ep: mean over mixtures and micro-batches
  double gradient_norm = 0.0;           // before clipping
  int64_t num_targets = 0;
  double entropy = 0.0;   // normalised load entropy, mean over blocks
  double max_load = 0.0;  // busiest expert / mean
};

// The memory of a step that only a dry run finds.
struct StepMemory {
  int64_t workspace_bytes = 0;
  int64_t late_bytes = 0;  // see parallel::RankModelOptions
  bool operator==(const StepMemory&) const = default;
};

class Trainer {
 public:
  // memory: what a dry run of the step found; absent: it is counted (meta device only).
  // products: outlives the trainer; null: the kernels follow their rules.
  // muon_plans: see parallel::RankModelOptions.  on: of the allocator, or on meta the one planned
  // for.
  Trainer(const Recipe& recipe, DType compute, Allocator& allocator, Threads& threads,
          comm::Group& ranks, std::optional<StepMemory> memory,
          const kernels::ProductTable* products = nullptr,
          parallel::SharedMuonPlans* muon_plans = nullptr, const ComputeDevice& on = {});
  Trainer(const Trainer&) = delete;

  void initialize() { model_.initialize(); }  // weights from the seed
  void initialize_adapters() { model_.initialize_adapters(); }
  // After they were loaded, or, as apply() leaves them, by_updates (RankModel::weights_changed).
  void weights_changed(bool by_updates = false) { model_.weights_changed(by_updates); }
  void list_shard_works(std::vector<parallel::Zero::ShardWork>* works) {
    model_.zero().list_works(works);
  }

  // Runs forward and backward of model().micro_batches_per_step() micro-batches.  ended(i) is
  // called after the backward of micro-batch i.
  void run(int64_t step, std::span<const MicroBatch> batches, function_ref<void(int64_t)> ended);
  void run(int64_t step, std::span<const MicroBatch> batches) {
    run(step, batches, [](int64_t) {});
  }
  // To be called after run.
  void reduce();
  // To be called after reduce.  Changes nothing.
  StepStats measure();
  // "name[index]" of the first non-finite gradient kept here, "" if all are finite.  To be called
  // after reduce, and before apply, in which Muon overwrites gradients.
  std::string first_bad_gradient() const;
  // To be called after measure.  Makes one update at the schedule's rate of this step.
  void apply(const StepStats& stats);
  // To be called instead of apply: the step changes nothing that a checkpoint holds.
  void skip();
  // The losses of one micro-batch of each data-parallel rank.  Not to be called inside a step
  // (RankModel::evaluate).
  LossSum evaluate(const MicroBatch& batch);

  const parallel::RankModel& model() const { return model_; }
  const Recipe& recipe() const { return model_.recipe(); }
  const kernels::Context& context() const { return ctx_; }
  int64_t num_parameters() const;  // trained, of the whole model
  const optim::Optimizer& optimizer() const { return optimizer_; }
  const optim::Balancer& balancer() const { return balancer_; }
  double learning_rate(int64_t step) const;
  // The memory that steps took of what `memory` grants.
  StepMemory peak_memory() const { return {workspace_.peak_bytes(), model_.late_peak_bytes()}; }

  void restore_counters(int64_t optimizer_steps, int64_t balancer_updates);
  // The pieces of the optimizer's state that this rank keeps.  to_write: see RankModel::pieces.
  std::vector<Piece> optimizer_pieces(bool to_write) const;
  // Every tensor of component model and every optimizer state of one, wherever it is kept.
  std::vector<LogicalTensor> whole_state() const;

 private:
  optim::Balancer make_balancer(Allocator& allocator) const;
  double target_correction() const;
  double padding_correction() const;
  double balance_factor() const;

  Arena workspace_;
  const kernels::Context ctx_;
  parallel::RankModel model_;
  optim::Optimizer optimizer_;
  optim::Balancer balancer_;
  int64_t step_ = 0;
  LossSum losses_;  // of the step, of all ranks
};

// The optimizer of a rank whose matrices are gathered in muon_ranks, for the parts of the trained
// tensors that it keeps: `model`'s own, or those of another rank (parallel::Zero::of_rank).
optim::Optimizer make_optimizer(Allocator& allocator, const parallel::RankModel& model,
                                comm::Group& muon_ranks, std::vector<Parameter> parameters);

}  // namespace ashlar::train
