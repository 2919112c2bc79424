#include <optional>

#include "ashlar/kernels/qk.h"
#include "ashlar/nn/model.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Operand;

Operand make_operand(const Context& ctx, Arena& arena, const Tensor& w, DType compute,
                     bool for_backward) {
  Operand operand{.w = w, .forward = {}, .backward = {}};
  const auto layout =
      operand_layout(ctx, operand.groups(), operand.n(), operand.k(), compute, for_backward);
  if (layout.forward_numel > 0) operand.forward = arena.take(layout.dtype, {layout.forward_numel});
  if (layout.backward_numel > 0)
    operand.backward = arena.take(layout.dtype, {layout.backward_numel});
  return operand;
}

// Two arenas, each with room for any block; none unless wanted.
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

Tensor vector_at(const Tensor& first, int64_t numel) {
  return {first.data, first.dtype, first.device, {numel}};
}

}  // namespace

Arena arena_for(Allocator& allocator, Tag tag, function_ref<void(Arena&)> lay_out, int64_t align) {
  Arena counter(Device::kMeta, align);
  lay_out(counter);
  return Arena(allocator, counter.peak_bytes(), tag, align);
}

ModelWeights ModelWeights::make(Arena& root, function_ref<Arena&(int64_t)> products,
                                const ModelSpec& spec, DType dtype, DType product_dtype,
                                bool buffers) {
  ModelWeights w;
  w.embed = root.take(dtype, {spec.vocab_size, spec.hidden_size});
  w.input_scale = root.take(dtype, {spec.hidden_size});
  w.input_bias = root.take(dtype, {spec.hidden_size});
  w.norm = root.take(dtype, {spec.hidden_size});
  w.blocks.resize(size_t(spec.num_hidden_layers));
  const auto each = [&](Part part) {
    for (int64_t l = 0; l < spec.num_hidden_layers; ++l) {
      const bool product = part == Part::kProducts;
      Arena& arena = product ? products(l) : root;
      std::optional<Arena::Scope> slot;
      if (&arena != &root) slot.emplace(arena);
      w.blocks[size_t(l)].take(arena, spec, l, product ? product_dtype : dtype, part);
    }
  };
  each(Part::kVectors);
  each(Part::kProducts);
  if (buffers) each(Part::kBuffers);
  return w;
}

ModelWeights ModelWeights::make(Arena& arena, const ModelSpec& spec, DType dtype, bool buffers) {
  return make(
      arena, [&](int64_t) -> Arena& { return arena; }, spec, dtype, dtype, buffers);
}

void ModelWeights::for_each(const ModelSpec& spec, Visitor visit) const {
  visit({.name = "model.embed_tokens.weight", .decay = true}, embed);
  visit({.name = "model.input_hidden_states_scale", .init = Init::kOne}, input_scale);
  visit({.name = "model.input_hidden_states_bias", .init = Init::kZero}, input_bias);
  for (size_t l = 0; l < blocks.size(); ++l)
    blocks[l].for_each(spec, "model.layers." + std::to_string(l) + ".", visit);
  visit({.name = "model.norm.weight", .init = Init::kOne}, norm);
}

ModelOperands ModelOperands::make(const Context& ctx, Arena& root,
                                  function_ref<Arena&(int64_t)> blocks, const ModelSpec& spec,
                                  const Types& types, const ModelWeights& weights,
                                  bool for_backward) {
  ModelOperands operands;
  operands.head = make_operand(ctx, root, weights.embed,
                               spec.head_fp32 ? types.stream : types.compute, for_backward);
  for (size_t l = 0; l < weights.blocks.size(); ++l) {
    const BlockWeights& w = weights.blocks[l];
    const RouterWeights& router = w.moe.router;
    Arena& arena = blocks(int64_t(l));
    std::optional<Arena::Scope> slot;
    if (&arena != &root) slot.emplace(arena);
    const auto operand = [&](const Tensor& tensor) {
      return make_operand(ctx, arena, tensor, types.compute, for_backward);
    };
    operands.blocks.push_back(
        {.attention = {operand(w.attention.qkv),
                       operand(grouped_conv_matrices(spec, w.attention.conv1_w)),
                       operand(w.attention.o_proj)},
         .moe = {.router = {operand(router.down_w), operand(router.fc1_w), operand(router.fc2_w),
                            operand(router.out_w)},
                 .gate_up = operand(w.moe.gate_up),
                 .down = operand(w.moe.down)}});
  }
  return operands;
}

void ModelOperands::pack(const Context& ctx, int64_t unit) const {
  if (unit == 0) return kernels::pack(ctx, head);
  const BlockOperands& b = blocks[size_t(unit) - 1];
  const RouterOperands& router = b.moe.router;
  for (const Operand* operand :
       {&b.attention.qkv, &b.attention.conv1, &b.attention.o_proj, &router.down, &router.fc1,
        &router.fc2, &router.out, &b.moe.gate_up, &b.moe.down})
    kernels::pack(ctx, *operand);
}

FlatLayout flat_layout(const ModelSpec& spec, DType dtype) {
  FlatLayout flat;
  std::vector<const std::byte*> begins;
  // Addresses that nobody reads: only their distances count.
  Arena root = Arena::addresses();
  const ModelWeights w = ModelWeights::make(root, spec, dtype, false);
  begins.push_back(w.embed.data);
  for (const BlockWeights& block : w.blocks) begins.push_back(block.attention.qkv.data);
  begins.push_back(w.embed.data + root.used_bytes());
  for (size_t u = 0; u + 1 < begins.size(); ++u)
    flat.unit_numel.push_back((begins[u + 1] - begins[u]) / size_of(dtype));
  w.for_each(spec, [&](const ParameterInfo&, const Tensor& tensor) {
    size_t unit = 0;
    while (unit + 2 < begins.size() && tensor.data >= begins[unit + 1]) ++unit;
    flat.places.push_back(
        {int64_t(unit), (tensor.data - begins[unit]) / size_of(dtype), tensor.numel()});
  });
  return flat;
}

Model::Model(const Context& ctx, Allocator& allocator, const ModelSpec& spec, DType compute,
             int64_t max_positions, bool training, const ModelMemory& memory)
    : spec_(spec),
      types_(Types::of(compute)),
      memory_(memory),
      flat_(flat_layout(spec_, types_.stream)),
      weight_arena_(Device::kMeta),
      gradient_arena_(Device::kMeta),
      table_arena_(arena_for(allocator, Tag::kWeights,
                             [&](Arena& arena) {
                               arena.take(types_.stream, {max_positions, spec_.rotary_dim()});
                               arena.take(types_.stream, {max_positions, spec_.rotary_dim()});
                             })),
      rope_(table_arena_.take(types_.stream, {max_positions, spec_.rotary_dim()})),
      rope_sliding_(table_arena_.take(types_.stream, {max_positions, spec_.rotary_dim()})),
      runner_({}, {}, {}) {
  take_weights(ctx, allocator, training);
  if (training) take_gradients(allocator);
  runner_ = LocalRunner(weights_.blocks, operands_.blocks, gradients_.blocks);
  rope_table(ctx, spec_.rope_theta, spec_.rotary_dim(), rope_);
  rope_table(ctx, spec_.rope_theta_sliding, spec_.rotary_dim(), rope_sliding_);
}

void Model::take_weights(const Context& ctx, Allocator& allocator, bool training) {
  const DType stream = types_.stream;
  const DType product_dtype = memory_.weight_slots ? memory_.slot_dtype : stream;
  // Elements of a slot lie as they would in the stream type.
  const int64_t align = Arena::kAlign / size_of(stream) * size_of(product_dtype);
  const auto weights = [&](Arena& root, function_ref<Arena&(int64_t)> products) {
    return ModelWeights::make(root, products, spec_, stream, product_dtype, true);
  };
  const auto operands = [&](Arena& root, function_ref<Arena&(int64_t)> blocks,
                            const ModelWeights& w) {
    return ModelOperands::make(ctx, root, blocks, spec_, types_, w, training);
  };
  Arena unused(Device::kMeta);
  const auto to_unused = [&](int64_t) -> Arena& { return unused; };
  weight_slots_ =
      make_slots(allocator, Tag::kWeights, memory_.weight_slots, align,
                 [&](Arena& slot) { weights(unused, [&](int64_t) -> Arena& { return slot; }); });
  const ModelWeights shapes = weights(unused, to_unused);
  operand_slots_ =
      make_slots(allocator, Tag::kWeights, memory_.operand_slots, Arena::kAlign, [&](Arena& slot) {
        operands(
            unused, [&](int64_t) -> Arena& { return slot; }, shapes);
      });
  weight_arena_ = arena_for(allocator, Tag::kWeights, [&](Arena& arena) {
    const auto products = [&](int64_t) -> Arena& { return memory_.weight_slots ? unused : arena; };
    const auto blocks = [&](int64_t) -> Arena& { return memory_.operand_slots ? unused : arena; };
    operands(arena, blocks, weights(arena, products));
  });
  weights_ = weights(weight_arena_, arenas(weight_arena_, weight_slots_));
  operands_ = operands(weight_arena_, arenas(weight_arena_, operand_slots_), weights_);
}

void Model::take_gradients(Allocator& allocator) {
  const auto gradients = [&](Arena& root, function_ref<Arena&(int64_t)> products) {
    return ModelWeights::make(root, products, spec_, types_.stream, types_.stream, false);
  };
  Arena unused(Device::kMeta);
  gradient_slots_ =
      make_slots(allocator, Tag::kGradients, memory_.gradient_slots, Arena::kAlign,
                 [&](Arena& slot) { gradients(unused, [&](int64_t) -> Arena& { return slot; }); });
  gradient_arena_ = arena_for(allocator, Tag::kGradients, [&](Arena& arena) {
    gradients(arena, [&](int64_t) -> Arena& { return memory_.gradient_slots ? unused : arena; });
  });
  gradients_ = gradients(gradient_arena_, arenas(gradient_arena_, gradient_slots_));
}

void Model::pack(const Context& ctx) const {
  for (int64_t unit = 0; unit < num_units(); ++unit) operands_.pack(ctx, unit);
}

ModelCall Model::call(SequenceExchange& exchange, const kernels::Sequence& sequence,
                      const Tensor& ids_T, BlockRunner* runner) {
  return {spec_, types_, weights_,     runner ? *runner : runner_, exchange, sequence,
          ids_T, rope_,  rope_sliding_};
}

Tensor Model::unit_weights(int64_t unit) const {
  return vector_at(unit == 0 ? weights_.embed : weights_.blocks[size_t(unit) - 1].attention.qkv,
                   flat_.unit_numel[size_t(unit)]);
}

Tensor Model::unit_gradients(int64_t unit) const {
  return vector_at(unit == 0 ? gradients_.embed : gradients_.blocks[size_t(unit) - 1].attention.qkv,
                   flat_.unit_numel[size_t(unit)]);
}

std::vector<Parameter> Model::parameters() const {
  std::vector<Parameter> list;
  weights_.for_each(spec_, [&](const ParameterInfo& info, const Tensor& value) {
    if (info.buffer) return;
    Parameter& p = list.emplace_back();
    p.logical = {info.name, value.dtype, value.shape, Role::kParameter};
    p.boxes = {Box::whole(value.shape)};
    p.end = value.numel();
    p.value = value;
    p.kind = info.kind;
    p.decay = info.decay;
    p.num_matrices = info.num_matrices;
  });
  if (gradients_.blocks.empty()) return list;
  size_t next = 0;
  gradients_.for_each(spec_, [&](const ParameterInfo& info, const Tensor& gradient) {
    ASHLAR_ASSERT(next < list.size() && list[next].logical.name == info.name);
    list[next++].gradient = gradient;
  });
  ASHLAR_ASSERT(next == list.size());
  return list;
}

std::vector<Piece> Model::pieces() const {
  std::vector<Piece> list;
  weights_.for_each(spec_, [&](const ParameterInfo& info, const Tensor& value) {
    list.push_back(whole_piece(info, value));
  });
  return list;
}

int64_t Model::num_parameters() const {
  int64_t total = 0;
  weights_.for_each(spec_, [&](const ParameterInfo& info, const Tensor& value) {
    if (!info.buffer) total += value.numel();
  });
  return total;
}

}  // namespace ashlar::nn
