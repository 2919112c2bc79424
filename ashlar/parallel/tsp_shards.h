// The shares of a branch's weights, of which every tsp rank holds one (tsp.h), as messages.  The
// products of a share lie one after another in the memory of their unit (nn/weights.h): one vector
// of weights and one of gradients, alike on all ranks.  A share may be cut into buckets of its
// heads: then a message is a bucket's, whose rows and columns the owner brings together.
//
// Types    shares travel row-major in the activation type, which products read (bf16 in a bf16
//          run), whatever type their owner keeps them in; gradients in the stream type.
// Memory   so many messages stand here at a time as ShardCounts says: row-major, and packed.  The
//          owner's stands in its unit too, whole; its gradient is made beside it as any other's.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

// How many messages of one branch stand in memory at a time.
struct ShardCounts {
  int weights, operands, gradients;
};

class BranchShards {
 public:
  // held: the branch whose tensors this rank holds, block `block` of the model.  turns: branches of
  // its kind, as many for each of the ranks, in their order.  They must outlive this.
  BranchShards(const nn::Model& model, int64_t block, nn::Branch& held,
               std::span<const std::unique_ptr<nn::Branch>> turns, const comm::Group& ranks,
               const ShardCounts& counts);

  // Takes room for shares and their gradients.  Branches that never run at a time may be given the
  // same memory.
  void take_room(const kernels::Context&, Arena& weights, Arena& gradients);

  // The rank of the group that holds the weights of a turn.
  int owner(int turn) const { return turn / num_buckets_; }
  const Tensor& weights(size_t slot) const { return weights_[slot]; }
  const Tensor& gradient(size_t slot) const { return gradients_[slot]; }
  // The weights of a turn of this rank as they travel: their own memory, or where that is of
  // another type or holds other buckets too a copy in the slot.
  Tensor own_message(const kernels::Context&, int turn, size_t slot) const;
  // The branch of a turn is to read the weights, packed into a slot of operands, and to write its
  // gradients into a slot.
  void use(const kernels::Context&, int turn, const Tensor& weights, size_t operands,
           size_t gradient, bool backward) const;
  // The sum over ranks of the gradient of a turn of this rank, added to what it has, or instead of
  // it.
  void keep_gradient(const kernels::Context&, int turn, size_t slot, bool accumulate) const;

 private:
  struct Packed {
    Tensor forward, backward;
  };
  // Rows and columns of product i as it is held here, and where a bucket's message has them.
  struct Rect {
    size_t i;
    int64_t rows, cols, held_row, held_col, row, col;
  };
  void find_rects(const nn::Share& held, const nn::Share& bucket);
  bool travels_as_held() const;
  // Of product i, in a message.
  Tensor part(const Tensor& message, size_t i) const;
  kernels::Matrix in_message(const Rect&, const Tensor& message) const;
  static kernels::Matrix in_held(const Rect&, const Tensor& product);
  const nn::Weight& held(size_t i) const { return *held_[i].weight; }

  const nn::Types types_;
  const int rank_, num_buckets_;
  const ShardCounts counts_;
  std::vector<nn::Stored> held_;                // products
  std::vector<std::vector<nn::Stored>> turns_;  // likewise
  std::vector<Shape> shapes_;                   // of the products of a turn
  std::vector<std::vector<Rect>> rects_;        // by bucket of this rank
  std::vector<int64_t> begins_;                 // of the products in a message
  int64_t numel_ = 0;                           // of a message
  std::vector<Tensor> weights_, gradients_;
  std::vector<std::vector<Packed>> operands_;
};

}  // namespace ashlar::parallel
