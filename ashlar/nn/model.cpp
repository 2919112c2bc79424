#include "ashlar/nn/model.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/rope.h"

namespace ashlar::nn {
namespace {

using kernels::Context;

// Two arenas, each large enough for any block; or none, unless wanted.
std::vector<Arena> make_slots(Allocator& allocator, Tag tag, bool wanted, int64_t align,
                              function_ref<void(Arena&)> lay_out) {
  std::vector<Arena> slots;
  for (int i = 0; i < 2 && wanted; ++i) slots.push_back(arena_for(allocator, tag, lay_out, align));
  return slots;
}

// Block l's arena: its slot, or the common one.
auto arenas(Arena& common, std::vector<Arena>& slots) {
  return [&](int64_t layer) -> Arena& {
    return slots.empty() ? common : slots[size_t(layer) % slots.size()];
  };
}

kernels::Rope rope_of(const RopeSpec& rope, int64_t length) {
  const RopeScalingSpec& s = rope.scaling;
  return {.theta = rope.theta,
          .scaling = {.type = kernels::RopeScaling::Type(s.type),
                      .factor = s.factor,
                      .original_positions = s.original_positions,
                      .low_freq_factor = s.low_freq_factor,
                      .high_freq_factor = s.high_freq_factor,
                      .beta_fast = s.beta_fast,
                      .beta_slow = s.beta_slow,
                      .attention_factor = s.attention_factor,
                      .truncate = s.truncate},
          .length = length};
}
static_assert(int(RopeType::kLlama3) == int(kernels::RopeScaling::Type::kLlama3));

Tensor vector_at(const Weight* first, Tensor Weight::*part, int64_t numel) {
  if (!first) return {};  // an empty unit
  const Tensor& at = first->*part;
  return {at.data, at.dtype, at.device, {numel}, at.memory};
}

// The first block with the RoPE of block l.
size_t first_alike(const ModelSpec& spec, size_t l) {
  const auto alike = [&](const BlockSpec& block) { return block.rope() == spec.blocks[l].rope(); };
  return size_t(std::find_if(spec.blocks.begin(), spec.blocks.end(), alike) - spec.blocks.begin());
}

std::vector<Tensor> take_tables(Arena& arena, const ModelSpec& spec, DType dtype,
                                int64_t max_positions) {
  std::vector<Tensor> tables;
  for (size_t l = 0; l < spec.blocks.size(); ++l) {
    const size_t first = first_alike(spec, l);
    tables.push_back(first < l
                         ? tables[first]
                         : arena.take(dtype, {max_positions, spec.blocks[l].rope().rotary_dim}));
  }
  return tables;
}

std::vector<Tensor> take_log_decays(Arena& arena, const ModelWeights& weights, DType dtype) {
  std::vector<Tensor> all(weights.blocks.size());
  weights.for_each_block([&](const Block& block, int64_t l) {
    const auto num = int64_t(block.mixer->needs().tokens.log_decay_H.size());
    if (num > 0) all[size_t(l)] = arena.take(dtype, {num});
  });
  return all;
}

}  // namespace

Model::Model(const Context& ctx, Allocator& allocator, const ModelSpec& whole, DType compute,
             int64_t max_positions, const ModelOptions& options)
    : types_(Types::of(compute, options.stream)),
      memory_(options.memory),
      weights_(whole, options.share, options.init, options.tune),
      flat_(flat_layout(whole, options.share, types_.wide, options.tune)),
      first_of_unit_(flat_.unit_numel.size()),
      operands_of_unit_(flat_.unit_numel.size()),
      weight_arena_(Device::kMeta),
      gradient_arena_(Device::kMeta),
      table_arena_(arena_for(allocator, Tag::kWeights,
                             [&](Arena& arena) {
                               take_tables(arena, whole, types_.wide, max_positions);
                               take_log_decays(arena, weights_, types_.wide);
                             })),
      rope_(take_tables(table_arena_, whole, types_.wide, max_positions)),
      log_decay_(take_log_decays(table_arena_, weights_, types_.wide)) {
  for (const Stored* stored : in_memory_order(weights_)) {
    const bool has_operand = stored->is_operand() && stored->is_packed;
    if (!stored->is_trained()) {
      if (has_operand) frozen_operands_.push_back(&stored->weight->operand);
      continue;
    }
    const auto unit = size_t(stored->unit);
    if (!first_of_unit_[unit]) first_of_unit_[unit] = stored->weight;
    if (has_operand) operands_of_unit_[unit].push_back(&stored->weight->operand);
  }
  take_weights(ctx, allocator, options.training);
  if (options.training) take_gradients(allocator);
  for (size_t l = 0; l < rope_.size(); ++l)
    if (first_alike(whole, l) == l)
      rope_table(ctx, rope_of(whole.blocks[l].rope(), options.first_tokens), rope_[l]);
  for (size_t l = 0; l < log_decay_.size(); ++l)
    if (log_decay_[l])
      upload(ctx, weights_.blocks[l].mixer->needs().tokens.log_decay_H, log_decay_[l]);
}

void Model::take_weights(const Context& ctx, Allocator& allocator, bool training) {
  const DType wide = types_.wide;
  const DType product_dtype = memory_.weight_slots ? memory_.slot_dtype : wide;
  // Elements of a slot have the same offsets as in the wide type.
  const int64_t align = Arena::kAlign / size_of(wide) * size_of(product_dtype);
  const auto values = [&](Arena& root, ArenaOfBlock products) {
    lay_out(weights_, &Weight::value, root, products,
            {wide, product_dtype, wide == DType::kF64 ? wide : memory_.frozen_dtype});
  };
  const auto operands = [&](Arena& root, ArenaOfBlock blocks) {
    lay_out_operands(ctx, weights_, root, blocks, types_, training);
  };
  Arena unused(Device::kMeta);
  const auto to_unused = [&](int64_t) -> Arena& { return unused; };
  weight_slots_ =
      make_slots(allocator, Tag::kWeights, memory_.weight_slots, align,
                 [&](Arena& slot) { values(unused, [&](int64_t) -> Arena& { return slot; }); });
  values(unused, to_unused);
  operand_slots_ =
      make_slots(allocator, Tag::kWeights, memory_.operand_slots, Arena::kAlign,
                 [&](Arena& slot) { operands(unused, [&](int64_t) -> Arena& { return slot; }); });
  weight_arena_ = arena_for(allocator, Tag::kWeights, [&](Arena& arena) {
    values(arena, [&](int64_t) -> Arena& { return memory_.weight_slots ? unused : arena; });
    operands(arena, [&](int64_t) -> Arena& { return memory_.operand_slots ? unused : arena; });
  });
  values(weight_arena_, arenas(weight_arena_, weight_slots_));
  operands(weight_arena_, arenas(weight_arena_, operand_slots_));
}

void Model::take_gradients(Allocator& allocator) {
  const auto gradients = [&](Arena& root, ArenaOfBlock products) {
    lay_out(weights_, &Weight::gradient, root, products, {types_.wide, types_.wide, types_.wide});
  };
  Arena unused(Device::kMeta);
  gradient_slots_ =
      make_slots(allocator, Tag::kGradients, memory_.gradient_slots, Arena::kAlign,
                 [&](Arena& slot) { gradients(unused, [&](int64_t) -> Arena& { return slot; }); });
  gradient_arena_ = arena_for(allocator, Tag::kGradients, [&](Arena& arena) {
    gradients(arena, [&](int64_t) -> Arena& { return memory_.gradient_slots ? unused : arena; });
  });
  gradients(gradient_arena_, arenas(gradient_arena_, gradient_slots_));
}

void Model::pack(const Context& ctx) const {
  for (int64_t unit = 0; unit < num_units(); ++unit) pack(ctx, unit);
  pack_frozen(ctx);
}

void Model::pack_frozen(const Context& ctx) const {
  for (const kernels::Operand* operand : frozen_operands_) kernels::pack(ctx, *operand);
}

void Model::pack(const Context& ctx, int64_t unit,
                 std::span<const kernels::Operand* const> except) const {
  for (const kernels::Operand* operand : operands_of_unit_[size_t(unit)])
    if (std::find(except.begin(), except.end(), operand) == except.end())
      kernels::pack(ctx, *operand);
}

ModelCall Model::call(const TokenExchanges& tokens, const kernels::Sequence& sequence,
                      const Tensor& ids_T, Residency* residency) {
  return {.types = types_,
          .weights = weights_,
          .residency = residency ? *residency : all_here_,
          .exchanges = {.tokens = tokens, .experts = &local_experts_},
          .sequence = sequence,
          .ids_T = ids_T,
          .rope = rope_,
          .log_decay = log_decay_};
}

Tensor Model::unit_weights(int64_t unit) const {
  return vector_at(first_of_unit_[size_t(unit)], &Weight::value, flat_.unit_numel[size_t(unit)]);
}

Tensor Model::unit_gradients(int64_t unit) const {
  return vector_at(first_of_unit_[size_t(unit)], &Weight::gradient, flat_.unit_numel[size_t(unit)]);
}

std::vector<Piece> Model::pieces() const {
  std::vector<Piece> list;
  weights_.for_each([&](const ParameterInfo& info, const Tensor& value, const Tensor&) {
    list.push_back(whole_piece(info, value));
  });
  return list;
}

int64_t Model::num_parameters() const {
  int64_t total = 0;
  for (const FlatRange& range : flat_.ranges) total += range.numel;
  return total;
}

}  // namespace ashlar::nn
