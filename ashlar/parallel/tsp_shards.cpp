#include "ashlar/parallel/tsp_shards.h"

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;
using nn::Stored;

// Lists the branch, whose shapes are then those of the share: its products, and what all ranks hold
// whole.
struct Listed {
  std::vector<Stored> products, whole;
  Listed(const nn::Model& model, int64_t block, nn::Branch& branch, const nn::Share& share) {
    const InitSpec init;
    branch.list({model.spec(), share, init, block, ""}, [&](const Stored& stored) {
      (stored.is_operand() ? products : whole).push_back(stored);
    });
  }
};

// Of what all ranks hold whole, `stored` is the part that turn `turn` of so many reads: all of it,
// or where it stands share after share the turn's.
void view_whole(const nn::Weight& all, int turn, int num_turns, const Stored& stored) {
  const bool parts = !stored.logical[0].cuts.empty();
  const auto part = [&](const Tensor& tensor) {
    const int64_t rows = tensor.shape[0] / num_turns;
    return parts ? tensor.slice(turn * rows, (turn + 1) * rows) : tensor;
  };
  stored.weight->value = part(all.value);
  stored.weight->gradient = part(all.gradient);
}

nn::Share share_of_turn(const nn::Model& model, int turn) {
  nn::Share share = model.weights().share;
  share.heads.index = share.width.index = turn;
  return share;
}

}  // namespace

BranchShards::BranchShards(const nn::Model& model, int64_t block, nn::Branch& held,
                           std::span<const std::unique_ptr<nn::Branch>> turns, int rank,
                           const ShardCounts& counts)
    : types_(model.types()), rank_(rank), counts_(counts) {
  Listed own(model, block, held, model.weights().share);
  held_ = std::move(own.products);
  const int64_t align = Arena::kAlign / size_of(types_.stream);
  for (const Stored& stored : held_) {
    begins_.push_back(round_up(numel_, align));
    numel_ = begins_.back() + stored.operand_shape.numel();
  }
  const auto lies_right = [&](size_t i) {
    const Tensor &first = this->held(0).gradient, &at = this->held(i).gradient;
    return first.device == Device::kMeta ||
           at.data - first.data == begins_[i] * size_of(types_.stream);
  };
  for (size_t i = 0; i < held_.size(); ++i) ASHLAR_ASSERT(lies_right(i));
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    Listed listed(model, block, *turns[turn], share_of_turn(model, int(turn)));
    ASHLAR_ASSERT(listed.products.size() == held_.size());
    for (size_t i = 0; i < own.whole.size(); ++i)
      view_whole(*own.whole[i].weight, int(turn), int(turns.size()), listed.whole[i]);
    turns_.push_back(std::move(listed.products));
  }
}

void BranchShards::take_room(const Context& ctx, Arena& weights, Arena& gradients) {
  weights_.clear(), gradients_.clear(), operands_.clear();
  for (size_t i = 0; i < counts_.weights; ++i)
    weights_.push_back(weights.take(types_.activation, {numel_}));
  for (size_t i = 0; i < counts_.gradients; ++i)
    gradients_.push_back(gradients.take(types_.stream, {numel_}));
  for (size_t i = 0; i < counts_.operands; ++i) {
    std::vector<Packed>& packed = operands_.emplace_back();
    for (const Stored& stored : held_) {
      const kernels::Operand operand{stored.weight->value.view(stored.operand_shape), {}, {}};
      const auto layout =
          operand_layout(ctx, operand.groups(), operand.n(), operand.k(), types_.compute, true);
      const auto take = [&](int64_t numel) {
        return numel > 0 ? weights.take(layout.dtype, {numel}) : Tensor{};
      };
      packed.push_back({take(layout.forward_numel), take(layout.backward_numel)});
    }
  }
}

Tensor BranchShards::part(const Tensor& share, size_t i) const {
  return share.slice(begins_[i], begins_[i] + held_[i].operand_shape.numel());
}

Tensor BranchShards::own_message(const Context& ctx, size_t slot) const {
  const Tensor& first = held(0).value;
  if (first.dtype == types_.activation) return {first.data, first.dtype, first.device, {numel_}};
  for (size_t i = 0; i < held_.size(); ++i) copy(ctx, held(i).value, part(weights_[slot], i));
  return weights_[slot];
}

void BranchShards::use(const Context& ctx, int turn, const Tensor& weights, size_t operands,
                       size_t gradient, bool backward) const {
  for (size_t i = 0; i < held_.size(); ++i) {
    nn::Weight& w = *turns_[size_t(turn)][i].weight;
    const Packed& packed = operands_[operands][i];
    w.value = turn == rank_ ? held(i).value : part(weights, i).view(held(i).value.shape);
    w.gradient = part(gradients_[gradient], i).view(held(i).gradient.shape);
    w.operand = {.w = w.value.view(held_[i].operand_shape),
                 .forward = packed.forward,
                 .backward = backward ? packed.backward : Tensor{}};
    pack(ctx, w.operand);
  }
}

void BranchShards::keep_gradient(const Context& ctx, size_t slot, bool accumulate) const {
  for (size_t i = 0; i < held_.size(); ++i) {
    const Tensor sum = part(gradients_[slot], i);
    accumulate ? add(ctx, sum, held(i).gradient) : copy(ctx, sum, held(i).gradient);
  }
}

}  // namespace ashlar::parallel
