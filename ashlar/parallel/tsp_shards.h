// The shares of a branch's weights, one on each tsp rank (tsp.h), as messages.  The products of a
// share lie one after another in the memory of their unit (nn/weights.h): one vector of weights and
// one of gradients, the same on all ranks.  A share may be cut into buckets of its heads; a message
// is then one bucket, whose rows and columns the owner collects.
//
// Adapters (nn/lora.h) do not travel: all ranks hold them whole, as they do vectors.  A turn reads
// its part of the half that is cut, which lies between those of other turns.
//
// Types    shares are sent row-major in the activation type, which products read (bf16 in a bf16
//          run), whatever type their owner keeps; gradients in the wide type.
// Memory   room for as many messages at a time as ShardCounts says: row-major, and packed.  The
//          owner's share is also in its unit, whole; its gradient is made apart from the unit, as
//          that of any other share.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

// The number of messages of one branch in memory at a time.
struct ShardCounts {
  int weights, operands, gradients;
};

class BranchShards {
 public:
  // held: the branch whose tensors this rank holds, in block `block` of the model.  turns: branches
  // of its kind, the same number for each rank, in rank order.  They must outlive this.
  BranchShards(const nn::Model& model, int64_t block, nn::Branch& held,
               std::span<const std::unique_ptr<nn::Branch>> turns, const comm::Group& ranks,
               const ShardCounts& counts);

  // Takes memory for shares and their gradients.  Branches that never run at the same time may
  // share memory.
  void take_room(const kernels::Context&, Arena& weights, Arena& gradients);

  // The rank of the group that holds the weights of a turn.
  int owner(int turn) const { return turn / num_buckets_; }
  const Tensor& weights(size_t slot) const { return weights_[slot]; }
  const Tensor& gradient(size_t slot) const { return gradients_[slot]; }
  // The weights of a turn of this rank as a message: their own memory, or a copy in the slot if
  // that memory has another type or holds other buckets too.
  Tensor own_message(const kernels::Context&, int turn, size_t slot) const;
  // Lets the branch of a turn read the weights, which are packed into a slot of operands, and write
  // its gradients into a slot.
  void use(const kernels::Context&, int turn, const Tensor& weights, size_t operands,
           size_t gradient, bool backward) const;
  // Whether any of the products is trained; otherwise there are no gradients to send.
  bool has_gradients() const { return gradient_numel_ > 0; }
  // Keeps the sum over ranks of the gradient of a turn of this rank: adds it to the gradient here,
  // or overwrites that.
  void keep_gradient(const kernels::Context&, int turn, size_t slot, bool accumulate) const;

 private:
  struct Packed {
    Tensor forward, backward;
  };
  // Rows and columns of product i as held here, and their place in a bucket's message.
  struct Rect {
    size_t i;
    int64_t rows, cols, held_row, held_col, row, col;
  };
  void find_rects(const nn::Share& held, const nn::Share& bucket);
  bool travels_as_held() const;
  bool is_trained(size_t i) const { return bool(held(i).gradient); }
  void view_adapters(const nn::Model& model, size_t i, size_t num_turns);
  // Product i in a message of weights or gradients.
  Tensor part(const Tensor& message, const std::vector<int64_t>& begins, size_t i) const;
  kernels::Matrix in_message(const Rect&, const Tensor& message,
                             const std::vector<int64_t>& begins) const;
  static kernels::Matrix in_held(const Rect&, const Tensor& product);
  const nn::Weight& held(size_t i) const { return *held_[i].weight; }

  const nn::Types types_;
  const int rank_, num_buckets_;
  const ShardCounts counts_;
  std::vector<nn::Stored> held_;                   // products
  std::vector<std::vector<nn::Stored>> turns_;     // products by turn
  std::vector<Shape> shapes_;                      // shapes of the products of a turn
  std::vector<std::vector<Rect>> rects_;           // by bucket of this rank
  std::vector<int64_t> begins_, gradient_begins_;  // offsets of the products in a message
  int64_t numel_ = 0, gradient_numel_ = 0;         // elements of a message
  // By turn: the halves of adapters of which the turn has a part.
  std::vector<std::vector<nn::Weight*>> adapters_;
  std::vector<Tensor> weights_, gradients_;
  std::vector<std::vector<Packed>> operands_;
};

}  // namespace ashlar::parallel
