// A model in training: all memory of the run, and the two halves of a step.
//
//   accumulate   forward and backward of one micro-batch; gradients and expert counts add up, and
//                begin to be summed over the ranks
//   reduce       waits for those sums
//   apply        norm, clipping, optimizer, balancing; new weights begin to be gathered
//
// Ranks     are points of a mesh (parallel/mesh.h).  What each holds and says to others is up to
//           parallel: zero.h, context.h, tensor_runner.h, muon.h.
//
// The same object on the meta device is the dry run: it counts the same bytes and records every
// kernel.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/loss.h"
#include "ashlar/nn/model.h"
#include "ashlar/optim/balance.h"
#include "ashlar/optim/optimizer.h"
#include "ashlar/parallel/context.h"
#include "ashlar/parallel/tensor.h"
#include "ashlar/parallel/tensor_runner.h"
#include "ashlar/parallel/tensor_sums.h"
#include "ashlar/parallel/zero.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// One micro-batch as the trainer reads it: T = rows * sequence length tokens, the same on ranks that
// share sequences or heads.
struct MicroBatch {
  std::span<const int32_t> ids, targets;  // targets: -1 means no loss
  std::span<const Segment> segments;
};

struct StepStats {
  double loss = 0.0;           // mean over the targets of the step
  double gradient_norm = 0.0;  // before clipping
  int64_t num_targets = 0;
  double entropy = 0.0,
         max_load = 0.0;  // normalised load entropy (mean over blocks); busiest expert / mean
};

class Trainer {
 public:
  // workspace_bytes: what a dry run of the step found; absent: count it (meta device only).
  Trainer(const Recipe& recipe, DType compute, Allocator& allocator, Threads& threads,
          comm::Group& ranks, std::optional<int64_t> workspace_bytes,
          kernels::Recorder* recorder = nullptr);
  Trainer(const Trainer&) = delete;

  void initialize();  // weights from the seed, packed

  void begin_step(int64_t step);
  void accumulate(const MicroBatch& batch);
  void reduce();  // after the last micro-batch of the step
  // Mean loss and gradient norm of what was reduced; changes nothing.
  StepStats measure();
  // One update at the schedule's rate of this step.
  void apply(const StepStats& stats);
  // Sum of losses and number of targets of one micro-batch of each data-parallel rank; weights and
  // counts stay as they are.
  std::pair<double, int64_t> evaluate(const MicroBatch& batch);

  // "name[index]" of the first non-finite gradient, "" if all are finite.
  std::string first_bad_gradient();

  const Recipe& recipe() const { return recipe_; }
  const ParallelSpec& parallel() const { return parallel_; }  // resolved
  const parallel::Groups& groups() const { return groups_; }
  // Every group in which this rank says anything.
  std::vector<const comm::Group*> all_groups() const;
  int64_t micro_batches_per_step() const;
  const nn::Model& model() const { return model_; }
  int64_t num_parameters() const;  // of the whole model
  const optim::Optimizer& optimizer() const { return optimizer_; }
  const optim::Balancer& balancer() const { return balancer_; }
  void restore_counters(int64_t optimizer_steps, int64_t balancer_updates);
  // What this rank keeps of the state.  to_write: what it writes, so that all ranks together write
  // each element once.
  std::vector<Piece> model_pieces(bool to_write) const;
  std::vector<Piece> optimizer_pieces(bool to_write) const;
  // Every tensor of component model and every state of one, wherever it is kept.
  std::vector<LogicalTensor> whole_state() const;
  void weights_changed() { zero_.weights_changed(); }  // after they were loaded
  double learning_rate(int64_t step) const;
  int64_t workspace_peak_bytes() const { return workspace_.peak_bytes(); }
  const kernels::Context& context() const { return ctx_; }

 private:
  parallel::TensorPlace tensor_place() const;
  nn::TokenCounts token_counts() const;  // of this rank in a micro-batch
  bool shards_stream() const;
  nn::Saved save_in(Arena& arena) const;
  optim::Optimizer make_optimizer(Allocator& allocator, DType compute) const;
  void take(std::span<const int32_t> whole, const Tensor& out);
  void load(const MicroBatch& batch);
  nn::ModelCall call(bool accumulate);
  std::pair<double, int64_t> sum_losses() const;
  std::pair<double, int64_t> over_ranks(std::pair<double, int64_t> losses, std::string_view label);
  double sum_over_ranks(double value, std::string_view label);
  Tensor over(std::span<double> values) const;
  void count_loads();
  double target_correction() const;
  double balance_factor() const;
  Recipe recipe_;
  const ParallelSpec parallel_;
  const parallel::Groups groups_;
  Arena workspace_;
  kernels::Context ctx_;
  nn::Model model_;
  Arena saved_arena_, input_arena_;
  nn::Saved saved_;
  Tensor ids_, targets_, loss_;
  Tensor counts_LX_;            // [L, E+1] I64, since begin_step
  std::vector<Tensor> counts_;  // its rows
  std::vector<Tensor> routed_;  // [E+1] I64 per block, of the last micro-batch
  kernels::Sequence sequence_;  // of ranks that share no sequences
  nn::LocalExchange local_;
  std::unique_ptr<parallel::ContextParallel> context_;  // null: cp 1
  std::unique_ptr<parallel::TensorRunner> tensor_;      // null: tp 1
  std::unique_ptr<parallel::PartialSums> partial_;      // null: no sequence_parallel
  std::vector<int32_t> local_ids_;                      // of the rank's tokens, while they are cut
  parallel::Zero zero_;
  optim::Optimizer optimizer_;
  optim::Balancer balancer_;
  int64_t step_ = 0;
  int64_t num_accumulated_ = 0;  // micro-batches of this step
  double loss_sum_ = 0.0;
  int64_t num_targets_ = 0;
  std::array<double, 2> sums_{};  // loss and targets while ranks add them up
};

}  // namespace ashlar::train
