// The shares of a branch's weights, of which every tsp rank holds one (tsp.h), as messages.  The
// products of a share lie one after another in the memory of their unit (nn/weights.h): one vector
// of weights and one of gradients, alike on all ranks.
//
// Types    shares travel row-major in the activation type, which products read (bf16 in a bf16
//          run), whatever type their owner keeps them in; gradients in the stream type.
// Memory   of other ranks' shares so many stand here at a time as ShardCounts says: row-major, and
//          packed.  The owner's stands in its unit; its gradient is made beside it as any other's.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/nn/model.h"

namespace ashlar::parallel {

// How many shares of one branch stand in memory at a time.
struct ShardCounts {
  size_t weights, operands, gradients;
};

class BranchShards {
 public:
  // held: the branch whose tensors this rank holds, block `block` of the model.  turns: branches of
  // its kind, that of share r for tsp rank r.  They must outlive this.
  BranchShards(const nn::Model& model, int64_t block, nn::Branch& held,
               std::span<const std::unique_ptr<nn::Branch>> turns, int rank,
               const ShardCounts& counts);

  // Takes room for shares and their gradients.  Branches that never run at a time may be given the
  // same memory.
  void take_room(const kernels::Context&, Arena& weights, Arena& gradients);

  // Elements of a share as it travels: its products, each begun at a multiple of Arena::kAlign
  // bytes of the stream type.
  int64_t numel() const { return numel_; }
  const Tensor& weights(size_t slot) const { return weights_[slot]; }
  const Tensor& gradient(size_t slot) const { return gradients_[slot]; }
  // This rank's share as it travels: its own memory, or where that is of another type a copy in
  // the slot.
  Tensor own_message(const kernels::Context&, size_t slot) const;
  // The branch of share `turn` is to read the weights (a slot's, or if absent this rank's own),
  // packed into a slot of operands, and to write its gradients into a slot.
  void use(const kernels::Context&, int turn, const Tensor& weights, size_t operands,
           size_t gradient, bool backward) const;
  // The sum over ranks of this rank's gradient, added to what it has, or instead of it.
  void keep_gradient(const kernels::Context&, size_t slot, bool accumulate) const;

 private:
  struct Packed {
    Tensor forward, backward;
  };
  // Of product i.
  Tensor part(const Tensor& share, size_t i) const;
  const nn::Weight& held(size_t i) const { return *held_[i].weight; }

  const nn::Types types_;
  const int rank_;
  const ShardCounts counts_;
  std::vector<nn::Stored> held_;                // products
  std::vector<std::vector<nn::Stored>> turns_;  // likewise
  std::vector<int64_t> begins_;                 // of the products in a share
  int64_t numel_ = 0;
  std::vector<Tensor> weights_, gradients_;
  std::vector<std::vector<Packed>> operands_;
};

}  // namespace ashlar::parallel
