// Tensor and sequence parallelism folded on one axis: each of the tsp ranks holds one share of the
// heads and of the width, as under tensor parallelism, and one part of every sequence, as under
// context parallelism.  A rank's tokens pass through all shares, one after another: the shares are
// sent to it, and it adds up their outputs.  No activations are summed over ranks.
//
//              forward, turn after turn            backward
//   attention  broadcast of the turn's weights;    the same two again; reduce_scatter of the keys'
//              all_gather of its keys and values   gradients; reduce of the weights' gradients to
//              (cp.h)                              their owner
//   MLP        a ring: each share is sent to the   a ring the other way, and behind each share the
//              next rank while this one runs       sum of its gradients, back to the owner at last
//
// Gradients of weights are sent to their owners in every micro-batch, since a rank does not store
// gradients of other ranks' shares.
//
// Source   arXiv 2604.26294; the backward pass is derived.  docs/parallel/tsp.md has the order of
//          the turns, the bytes and the launches.
// Memory   tsp_shards.h; forward keeps the activations of all turns, or with
//          Mode::kBackwardRecompute those of the turns in progress.
// Numerics attention adds up turns in the same order on all ranks; an MLP begins (in backward ends)
//          with the rank's own share.  Gradients of attention are added in rank order, those of an
//          MLP in the order of the ring.  The bits do not depend on timing.
// Limits   branches that attend (CpGather of cp_keys.cpp behind them) or that see one token; no
//          late products.
// Errors   kComm, as comm/group.h.
#pragma once

#include <array>
#include <optional>

#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/tsp_shards.h"

namespace ashlar::parallel {

// Runs parts of turns so that part p of turn t comes after, or with last_first before, part p - 1
// of turn t + 1: what one posts is in flight while the other computes.
template <typename Run>
void skew(int num_turns, int num_parts, bool last_first, Run run) {
  for (int t = 0; t < num_turns + num_parts - 1; ++t)
    for (int i = 0; i < num_parts; ++i) {
      const int part = last_first ? num_parts - 1 - i : i, turn = t - part;
      if (0 <= turn && turn < num_turns) run(turn, part);
    }
}

class FoldedBranch : public nn::Branch {
 public:
  using Branches = std::vector<std::unique_ptr<nn::Branch>>;
  void list(const nn::LayerSpec& layer, nn::StoredVisitor visit) override {
    held_->list(layer, visit);
  }
  nn::BranchNeeds needs() const override;
  void lay_out(const nn::SavedArenas&, const nn::Types&, const nn::PassShape&, int slot) override;
  std::optional<nn::ExpertLoad> load(int) const override { return std::nullopt; }
  BranchShards& shards() { return shards_; }

 protected:
  // held: the branch that holds this rank's weights.  turns: the same number for each of `ranks`,
  // which together hold all shares.  num_alive: the largest number of turns that are between their
  // first and their last part at a time.
  FoldedBranch(const nn::Model& model, int64_t block, std::unique_ptr<nn::Branch> held,
               Branches turns, comm::Group& ranks, const ShardCounts& counts, int num_alive);
  int num_turns() const { return int(turns_.size()); }
  // The pass through one turn, the first of all or a later one.
  static nn::Pass pass_of(const nn::Pass& pass, int turn, bool first);
  // Memory for the sum over turns, in the wide type, and the rounding of that sum to its place.
  static Tensor room_for_sum(const kernels::Context&, const nn::Pass&, const Tensor& place);
  static void keep_sum(const kernels::Context&, const Tensor& sum, const Tensor& place);

  const std::unique_ptr<nn::Branch> held_;
  const Branches turns_;
  comm::Group& ranks_;
  BranchShards shards_;

 private:
  const int num_alive_;
};

// Attention, with several turns for every rank if its heads are cut into buckets.
class FoldedMixer final : public FoldedBranch {
 public:
  FoldedMixer(const nn::Model& model, int64_t block, std::unique_ptr<nn::Branch> held,
              Branches turns, comm::Group& ranks);
  void forward(const kernels::Context&, const nn::Pass&, int part, const Tensor& a_TH,
               const nn::Carry&, const Tensor& o_TH) override;
  void backward(const kernels::Context&, const nn::Pass&, int part,
                const nn::BackwardTensors&) override;

 private:
  static constexpr int kMostSlots = 3;
  static int num_slots(const nn::Model& model);
  size_t slot_of(int turn) const { return size_t(turn % num_slots_); }
  void post_weights(const kernels::Context&, int turn);
  void begin(const kernels::Context&);
  void acquire(const kernels::Context&, int turn, bool backward);
  void release(const kernels::Context&, int turn);
  void reduce(int turn);
  void finish_reduce(const kernels::Context&, const nn::Pass&, int turn);
  const int num_slots_;
  std::array<comm::Work, kMostSlots> weights_come_, gradients_leave_;
};

// A feed-forward with one part in forward and two in backward, the second of which makes the
// gradients of weights.
class FoldedMlp final : public FoldedBranch {
 public:
  FoldedMlp(const nn::Model& model, int64_t block, std::unique_ptr<nn::Branch> held, Branches turns,
            comm::Group& ranks);
  void forward(const kernels::Context&, const nn::Pass&, int part, const Tensor& a_TH,
               const nn::Carry&, const Tensor& o_TH) override;
  void backward(const kernels::Context&, const nn::Pass&, int part,
                const nn::BackwardTensors&) override;

 private:
  // A message to one neighbour and one from the other, kept while they are in flight.
  struct Hop {
    comm::Transfer send, receive;
    comm::Work work;
  };
  int rank_after(int steps) const;
  // steps: 1 sends to the next rank and receives from the rank before, -1 the reverse.
  void post(Hop& hop, int steps, const Tensor& send, const Tensor& receive, std::string_view label);
  Hop weights_, gradients_;
};

// Folds the branches of the model that are cut by heads or width.  Returns the memory for shares of
// other ranks, which all branches use in turn.
struct ShardMemory {
  Arena weights{Device::kMeta}, gradients{Device::kMeta};
};
ShardMemory fold_branches(const kernels::Context&, Allocator&, nn::Model&, const Groups&);

}  // namespace ashlar::parallel
