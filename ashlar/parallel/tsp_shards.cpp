#include "ashlar/parallel/tsp_shards.h"

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;
using kernels::Matrix;
using nn::Stored;

// Lists the branch, whose shapes are then those of the share: its products, and the tensors that
// all ranks hold whole.
struct Listed {
  std::vector<Stored> products, whole;
  Listed(const nn::Model& model, int64_t block, nn::Branch& branch, const nn::Share& share) {
    const InitSpec init;
    branch.list({model.spec(), share, init, block, ""}, [&](const Stored& stored) {
      (stored.is_operand() ? products : whole).push_back(stored);
    });
  }
};

// Makes `stored` a view of a tensor that all ranks hold whole: of all of it, or, if it has the
// parts of all turns one after another, of the part of turn `turn`.
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
  share.heads = {turn, share.heads.count * share.head_buckets};
  share.width.index = turn;
  return share;
}

// For several logical tensors one after another.
Shape shape_of(const Stored& stored, const nn::Share& share) {
  Shape shape = local_shape(stored.logical[0], share);
  for (size_t i = 1; i < stored.logical.size(); ++i)
    shape[0] += local_shape(stored.logical[i], share)[0];
  return shape;
}

Matrix matrix_of(const Tensor& tensor, const Shape& shape) {
  return Matrix::of(tensor.view({shape[0], shape.numel() / shape[0]}));
}

}  // namespace

BranchShards::BranchShards(const nn::Model& model, int64_t block, nn::Branch& held,
                           std::span<const std::unique_ptr<nn::Branch>> turns,
                           const comm::Group& ranks, const ShardCounts& counts)
    : types_(model.types()),
      rank_(ranks.rank()),
      num_buckets_(int(turns.size()) / ranks.size()),
      counts_(counts) {
  const nn::Share& share = model.weights().share;
  Listed own(model, block, held, share);
  held_ = std::move(own.products);
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    Listed listed(model, block, *turns[turn], share_of_turn(model, int(turn)));
    ASHLAR_ASSERT(listed.products.size() == held_.size());
    for (size_t i = 0; i < own.whole.size(); ++i)
      view_whole(*own.whole[i].weight, int(turn), int(turns.size()), listed.whole[i]);
    turns_.push_back(std::move(listed.products));
  }
  const int64_t align = Arena::kAlign / size_of(types_.wide);
  const nn::Share first = share_of_turn(model, rank_ * num_buckets_);
  adapters_.resize(turns.size());
  for (size_t i = 0; i < held_.size(); ++i) {
    shapes_.push_back(shape_of(held_[i], first));
    begins_.push_back(round_up(numel_, align));
    numel_ = begins_.back() + shapes_.back().numel();
    gradient_begins_.push_back(round_up(gradient_numel_, align));
    if (is_trained(i)) gradient_numel_ = gradient_begins_.back() + shapes_.back().numel();
    view_adapters(model, i, turns.size());
  }
  for (int bucket = 0; bucket < num_buckets_; ++bucket)
    find_rects(share, share_of_turn(model, rank_ * num_buckets_ + bucket));
  const auto lies_right = [&](size_t i) {
    const Tensor &zero = this->held(0).gradient, &at = this->held(i).gradient;
    return zero.device == Device::kMeta || at.data - zero.data == begins_[i] * size_of(types_.wide);
  };
  const bool is_unit = num_buckets_ == 1 && gradient_numel_ == numel_;
  for (size_t i = 0; i < held_.size(); ++i) ASHLAR_ASSERT(!is_unit || lies_right(i));
}

// Gives product i of every turn the adapters that this rank holds: one half whole, of the other the
// part that belongs to the turn's rows or columns.
void BranchShards::view_adapters(const nn::Model& model, size_t i, size_t num_turns) {
  std::vector<int64_t> begins(held(i).adapters.size());  // of the turn's part
  for (size_t turn = 0; turn < num_turns; ++turn) {
    const nn::Share share = share_of_turn(model, int(turn));
    std::vector<int64_t> rows{0};
    for (const nn::ParameterInfo& info : held_[i].logical)
      rows.push_back(rows.back() + local_shape(info, share)[0]);
    std::vector<nn::Adapter>& adapters = turns_[turn][i].weight->adapters;
    adapters = held(i).adapters;
    for (size_t n = 0; n < adapters.size(); ++n) {
      nn::Adapter& adapter = adapters[n];
      const nn::ParameterInfo& info = held_[i].logical[adapter.logical];
      adapter.begin = rows[adapter.logical], adapter.end = rows[adapter.logical + 1];
      if (adapter.begin == adapter.end) continue;
      const bool cuts_rows = info.cuts[0].dim == 0;
      nn::Weight& half = cuts_rows ? adapter.b : adapter.a;
      Shape part = half.value.shape;
      part[cuts_rows ? 0 : 1] = local_shape(info, share)[cuts_rows ? 0 : 1];
      for (Tensor* tensor : {&half.value, &half.gradient})
        *tensor =
            tensor->view({tensor->numel()}).slice(begins[n], begins[n] + part.numel()).view(part);
      begins[n] += part.numel();
      adapters_[turn].push_back(&half);
    }
  }
}

void BranchShards::find_rects(const nn::Share& held, const nn::Share& bucket) {
  std::vector<Rect>& rects = rects_.emplace_back();
  for (size_t i = 0; i < held_.size(); ++i) {
    int64_t held_begin = 0, begin = 0;  // of the logical tensor's rows
    for (const nn::ParameterInfo& info : held_[i].logical) {
      ASHLAR_ASSERT(info.cuts.size() == 1);
      const nn::Cut& cut = info.cuts[0];
      const Shape here = local_shape(info, held), there = local_shape(info, bucket);
      int64_t held_at = 0, at = 0;  // of the section in the dim that is cut
      for (const nn::Section& section : cut.sections) {
        const nn::Portion all = portion_of(section, held), part = portion_of(section, bucket);
        const int64_t from = held_at + part.begin - all.begin;
        if (part.size() > 0 && cut.dim == 0)
          rects.push_back(
              {i, part.size(), here.numel() / here[0], held_begin + from, 0, begin + at, 0});
        if (part.size() > 0 && cut.dim == 1)
          rects.push_back({i, here[0], part.size(), held_begin, from, begin, at});
        held_at += all.size(), at += part.size();
      }
      held_begin += here[0], begin += there[0];
    }
  }
}

bool BranchShards::travels_as_held() const {
  return num_buckets_ == 1 && gradient_numel_ == numel_ && held(0).value.dtype == types_.activation;
}

void BranchShards::take_room(const Context& ctx, Arena& weights, Arena& gradients) {
  weights_.clear(), gradients_.clear(), operands_.clear();
  for (int i = 0; i < counts_.weights; ++i)
    weights_.push_back(weights.take(types_.activation, {numel_}));
  for (int i = 0; i < counts_.gradients; ++i)
    gradients_.push_back(gradients.take(types_.wide, {gradient_numel_}));
  const auto take_packed = [&](const Shape& shape) -> Packed {
    const kernels::Operand operand{{nullptr, types_.activation, Device::kMeta, shape}, {}, {}};
    const auto layout =
        operand_layout(ctx, operand.groups(), operand.n(), operand.k(), types_.compute, true);
    const auto take = [&](int64_t numel) {
      return numel > 0 ? weights.take(layout.dtype, {numel}) : Tensor{};
    };
    return {take(layout.forward_numel), take(layout.backward_numel)};
  };
  for (int i = 0; i < counts_.operands; ++i) {
    std::vector<Packed>& packed = operands_.emplace_back();
    for (const Stored& stored : turns_[0]) packed.push_back(take_packed(stored.operand_shape));
  }
  for (const std::vector<nn::Weight*>& of_turn : adapters_)
    for (nn::Weight* half : of_turn) {
      const Packed packed = take_packed(half->value.shape);
      half->operand = {half->value, packed.forward, packed.backward};
    }
}

Tensor BranchShards::part(const Tensor& message, const std::vector<int64_t>& begins,
                          size_t i) const {
  return message.slice(begins[i], begins[i] + shapes_[i].numel());
}

Matrix BranchShards::in_message(const Rect& rect, const Tensor& message,
                                const std::vector<int64_t>& begins) const {
  return matrix_of(part(message, begins, rect.i), shapes_[rect.i])
      .row_range(rect.row, rect.row + rect.rows)
      .columns(rect.col, rect.col + rect.cols);
}

Matrix BranchShards::in_held(const Rect& rect, const Tensor& product) {
  return matrix_of(product, product.shape)
      .row_range(rect.held_row, rect.held_row + rect.rows)
      .columns(rect.held_col, rect.held_col + rect.cols);
}

Tensor BranchShards::own_message(const Context& ctx, int turn, size_t slot) const {
  const Tensor& first = held(0).value;
  if (travels_as_held()) return {first.data, first.dtype, first.device, {numel_}};
  for (const Rect& rect : rects_[size_t(turn % num_buckets_)])
    copy(ctx, in_held(rect, held(rect.i).value), in_message(rect, weights_[slot], begins_));
  return weights_[slot];
}

void BranchShards::use(const Context& ctx, int turn, const Tensor& weights, size_t operands,
                       size_t gradient, bool backward) const {
  const bool reads_held = owner(turn) == rank_ && num_buckets_ == 1;
  for (size_t i = 0; i < held_.size(); ++i) {
    const Stored& stored = turns_[size_t(turn)][i];
    nn::Weight& w = *stored.weight;
    const Packed& packed = operands_[operands][i];
    w.value = reads_held ? held(i).value : part(weights, begins_, i).view(shapes_[i]);
    if (is_trained(i))
      w.gradient = part(gradients_[gradient], gradient_begins_, i).view(shapes_[i]);
    w.operand = {.w = w.value.view(stored.operand_shape),
                 .forward = packed.forward,
                 .backward = backward ? packed.backward : Tensor{}};
    pack(ctx, w.operand);
  }
  for (const nn::Weight* half : adapters_[size_t(turn)]) pack(ctx, half->operand);
}

void BranchShards::keep_gradient(const Context& ctx, int turn, size_t slot, bool accumulate) const {
  for (const Rect& rect : rects_[size_t(turn % num_buckets_)]) {
    if (!is_trained(rect.i)) continue;
    const Matrix sum = in_message(rect, gradients_[slot], gradient_begins_);
    const Matrix to = in_held(rect, held(rect.i).gradient);
    accumulate ? add(ctx, sum, to) : copy(ctx, sum, to);
  }
}

}  // namespace ashlar::parallel
