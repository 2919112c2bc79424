// A rank's model in training: everything that depends on the mesh, put together in one place.  The
// constructor is the list of techniques, in the order in which they surround the layers of nn; a
// technique that the recipe does not ask for leaves no trace.
//
//   share             the part of every tensor that this rank's layers run on (placement.h), and
//                     the part that stays in memory all the time (model_memory in zero.h)
//   pp                the rank's actions in a step, and its neighbours in them (schedule.h, pp.h)
//   tsp               branches that pass through all ranks' shares, one after another (tsp.h)
//   activations       memory for what forward keeps for backward, and for the tokens of a
//                     micro-batch: for this rank's tokens and the micro-batches in flight
//   cp                the exchange that reaches the tokens of other ranks (cp.h)
//   ep                the exchange that takes rows to the experts of other ranks (ep.h)
//   tp                branches around branches, which add up over ranks what these return (tp.h),
//                     and sums of the gradients that tp leaves partial (tp_sums.h)
//   zero              the residency: it gathers weights before a block runs, and reduces gradients
//                     after (zero.h)
//   checks            of copies of weights (copy_check.h) and of gradients (replay.h)
//
// Every rank makes the same calls in the same order:
//
//   once        initialize; or values are loaded into pieces(), then weights_changed
//   a step      step; reduce; download_results; then the owner of the optimizer reads the gradients
//               of parameters(), changes their values and calls weights_changed, or leaves them as
//               they are and calls nothing
//   evaluate    between steps
//
// Memory   the constructor takes all of it; temporaries come from ctx.workspace.
// Errors   kComm, as comm/group.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/kernels/update.h"
#include "ashlar/nn/model.h"
#include "ashlar/optim/matrices.h"
#include "ashlar/parallel/losses.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/pp.h"
#include "ashlar/parallel/shards.h"
#include "ashlar/parallel/step_loads.h"
#include "ashlar/parallel/tsp.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::parallel {

class CopyCheck;
class CpSequence;
struct CpSplit;
class PartialSums;
class EpExchange;
class ExpertSums;
class TpSums;
class HeadSums;
class MuonMatrices;
class Replay;
class SharedMuonPlans;
class Zero;

// Whole rows, train.micro_batch of data.sequence_length tokens; the same on ranks that share
// sequences or heads.
struct MicroBatch {
  std::span<const int32_t> ids, targets;  // targets: -1 means no loss
  std::span<const Segment> segments;
};

struct RankModelOptions {
  // The most segments of a micro-batch that continue a document begun by another of its segments
  // (nn::LocalExchange); with cp > 1 there must be none.
  int64_t num_halos = 0;
  // The memory for the products that a micro-batch defers, as a dry run found it
  // (late_peak_bytes); absent: it is counted, on meta only.
  std::optional<int64_t> late_bytes{};
  SharedMuonPlans* muon_plans = nullptr;  // of all trainers of a dry run (muon_holdings.h)
};

class RankModel {
 public:
  // recipe: a valid one (load_recipe).  resolved: its mesh over the ranks of `world`
  // (resolve_parallel).  compute: the type in which products multiply.  Everything that ctx points
  // to, the allocator and the world must outlive this object.
  RankModel(const kernels::Context& ctx, Allocator& allocator, const Recipe& recipe,
            const ParallelSpec& resolved, comm::Group& world, DType compute,
            const RankModelOptions& options = {});
  RankModel(const RankModel&) = delete;
  ~RankModel();

  // Fills weights and buffers from the recipe's seed; they are then gathered and packed.
  void initialize();
  // Fills the adapters alone, where other values were loaded.
  void initialize_adapters();
  // To be called after values of parameters() were written.  Begins to gather whole weights, which
  // are packed before they are read.  by_updates: by those that packed packed_rows() (zero.h).
  void weights_changed(bool by_updates = false);

  // Runs forward and backward of micro_batches_per_step() micro-batches in the order of the program
  // (program.h).  Forgets gradients and loads of the step before.  Adds up gradients of the mean
  // loss over all tokens of the step, with or without a target, and begins to sum them over the
  // ranks (by ZeRO's stage: after every micro-batch, or after the last).  ended(i) is called after
  // the backward of micro-batch i.  Every stage of a pipeline is given the same micro-batches.
  void step(std::span<const MicroBatch> batches, function_ref<void(int64_t)> ended);
  void step(std::span<const MicroBatch> batches) {
    step(batches, [](int64_t) {});
  }
  // To be called after step.  Waits until gradients and loads are those of all ranks.
  void reduce();
  // To be called after reduce.  Downloads losses and loads, for which nothing waited before, and
  // whatever else is to come with them.
  void download_results(std::span<const kernels::Download> others = {});
  std::vector<Tensor> results() const;  // that it downloads
  // The losses of the targets here, valid after download_results.  The last stage of a pipeline
  // has them; on meta there is their count alone.
  const LossSum& losses() const { return losses_; }
  // Runs forward only and gives the losses of the targets here, as losses() does.  Weights,
  // gradients and step_loads() stay as they are; loads() and saved() are then of this micro-batch.
  // Not to be called inside a step, which lasts until the update or the decision to skip it.
  LossSum evaluate(const MicroBatch& batch);

  // Adds up the losses of all ranks that saw different tokens, of one micro-batch or of several.
  LossSum over_ranks(const LossSum& here, std::string_view label) const;
  // Adds up a number over all ranks that keep parts of the state; on meta, gives this rank's.
  double sum_over_ranks(double here, std::string_view label) const;

  // The parts of the trained tensors that are kept here: values, and gradients, which are valid
  // from reduce on.
  const std::vector<Parameter>& parameters() const;
  const std::vector<kernels::PackedRows>& packed_rows() const;  // of parameters(): see zero.h
  // The cuts that ZeRO makes of a unit among the ranks that share it.
  const Shards& shards_of(int64_t unit) const;
  // Zero::gather_cost, of this step or evaluation.
  kernels::Cost gather_cost(int world_rank) const;
  // The tensors here that the run freezes, which whoever owns the model fills once.
  std::vector<Piece> frozen_pieces() const;
  // Balancing biases of the blocks here that are not frozen: whole, and equal on all ranks of the
  // stage.
  std::vector<Piece> buffers() const;
  // Whether this rank writes them into checkpoints, for all ranks of the stage.
  bool writes_buffers() const { return groups_.model().rank() == 0; }
  // Parameters and buffers as a checkpoint sees them; without frozen tensors.  to_write: only the
  // pieces that this rank writes, so that all ranks together write each element once
  // (pieces_to_write).
  std::vector<Piece> pieces(bool to_write) const;
  // Descriptions of every trained tensor and every trained buffer of the whole model, wherever it
  // is kept: no boxes, no data.
  std::vector<Parameter> all_parameters() const;
  std::vector<LogicalTensor> all_buffers() const;

  // The part of Muon that makes matrices orthogonal, where ranks keep parts of them.
  const MuonMatrices& muon() const { return *muon_; }
  const Zero& zero() const { return *zero_; }
  Zero& zero() { return *zero_; }

  // Loads of experts (step_loads.h).  loads() are of the last micro-batch: of all data ranks where
  // moe.balance.scope is micro_batch.  Those of the step are of all data ranks after reduce.
  std::span<const Tensor> loads() const { return loads_->found(); }
  std::span<const Tensor> step_loads() const { return loads_->of_step(); }
  // The loads of all blocks of the model in the step, on the host; zeros on meta.
  std::span<const std::span<const int64_t>> all_step_loads() const {
    return loads_->of_step_everywhere();
  }
  bool has_router_losses() const;  // the whole model
  bool compares_copies() const { return copy_check_ != nullptr; }
  bool replays() const { return replay_ != nullptr; }
  // The activations that forward kept of the last micro-batch, in the last chunk of a stage.
  const nn::Saved& saved() const { return *last_saved_; }

  const Recipe& recipe() const { return recipe_; }
  const ParallelSpec& parallel() const { return parallel_; }  // resolved
  int64_t micro_batches_per_step() const;                     // of this rank
  const nn::Model& local() const { return *model_; }          // the layers, on what is held here
  const Groups& groups() const { return groups_; }
  // The most that the deferred products of a micro-batch took; 0 where none are deferred.
  int64_t late_peak_bytes() const;
  // Every group in which this rank communicates.
  std::vector<const comm::Group*> all_groups() const;

 private:
  // The steps of the constructor, in its order.
  void take_share(Allocator& allocator, DType compute);
  void fold_layers(Allocator& allocator);  // tsp
  void plan_step();                        // pp
  void lay_out_activations(Allocator& allocator, int64_t num_halos);
  void lay_out_late_products(Allocator& allocator, std::optional<int64_t> bytes);  // pp
  void lay_out_inputs(Allocator& allocator);
  void share_sequences(Allocator& allocator);                      // cp
  void share_layers();                                             // tp
  void share_experts();                                            // ep
  void sum_partial(Allocator& allocator);                          // tp
  void shard_state(Allocator& allocator, SharedMuonPlans* plans);  // zero
  void check_copies();
  void check_gradients();

  std::vector<Piece> frozen_pieces_of(const nn::ParameterInfo& info, const Tensor& value) const;
  nn::Keep keep() const;
  CpSplit cp_split() const;
  int cp_rank() const;  // this rank's number in the split
  bool shards_stream() const { return parallel_.tp > 1 && parallel_.sequence_parallel; }
  nn::TokenCounts token_counts() const;  // this rank's, in a micro-batch
  void load(int64_t number, const MicroBatch& batch);
  void take_local(std::span<const int32_t> whole, const Tensor& out);
  nn::ModelCall call();
  const nn::Saved& saved_of(const StageProgram& program, size_t action) const;
  nn::StepLosses step_losses() const;
  void begin_step(const StageProgram& program);
  void repeat(int distance, const MicroBatch& own);
  void end_replay(const MicroBatch& own);
  void run_forward(const nn::Saved& saved);
  void run_backward(size_t action, const nn::Saved& saved);  // number in the step's program
  void run_weights(size_t action);
  void keep_router_losses(int64_t micro_batch, const nn::Saved& saved);
  void sum_losses();

  const Recipe recipe_;
  const ParallelSpec parallel_;
  const kernels::Context ctx_;
  const Groups groups_;
  std::unique_ptr<nn::Model> model_;
  ShardMemory shard_memory_;  // of tsp
  Arena saved_arena_{Device::kMeta}, input_arena_{Device::kMeta};
  std::vector<nn::BlockRange> chunks_;
  std::vector<std::vector<nn::Saved>> saved_;  // by chunk, by slot
  const nn::Saved* last_saved_ = nullptr;
  std::vector<Arena> late_arenas_;
  std::vector<std::unique_ptr<nn::LateProducts>> late_;
  Tensor ids_, targets_;
  int64_t loaded_ = -1;      // the micro-batch that these hold
  int64_t num_targets_ = 0;  // of that micro-batch; on meta every token
  std::optional<LossTable> loss_table_;
  LossSum losses_;  // of the step
  std::optional<StepLoads> loads_;
  // The places of this rank's tokens in a micro-batch, and room for a list of these tokens.
  std::vector<int64_t> whole_rows_;
  std::vector<int32_t> local_;
  kernels::Sequence sequence_;  // used where ranks share no sequences
  nn::LocalExchange local_exchange_;
  std::unique_ptr<CpSequence> cp_;           // null: cp 1 and tsp 1
  std::unique_ptr<EpExchange> ep_;           // null: ep 1
  std::unique_ptr<ExpertSums> expert_sums_;  // null: tp 1
  std::unique_ptr<HeadSums> head_sums_;      // null: no ranks share keys
  std::unique_ptr<TpSums> layer_sums_;       // null: tp 1
  std::unique_ptr<PartialSums> partial_;     // null: no gradient is partial
  std::unique_ptr<PpTransfers> pp_;          // null: pp 1
  std::unique_ptr<Zero> zero_;
  std::unique_ptr<CopyCheck> copy_check_;  // null: health.weights_every 0, or no copies
  std::unique_ptr<Replay> replay_;         // null: health.replay_every 0, or a single replica
  std::unique_ptr<MuonMatrices> muon_;
  StageProgram step_program_, evaluation_program_, replay_program_;
  std::vector<bool> accumulates_;  // by chunk: its gradients are not the first of the step
  bool in_step_ = false;           // not reduced yet
};

}  // namespace ashlar::parallel
