// How it works.  One list of a model's tensors, and the memory that follows from it.
//
//   list     each layer visits its tensors in the order in which forward uses them; the model adds
//            the block, the shape of the part on this rank, and where logical tensors begin in it
//   memory   lay_out walks the same list in memory order and takes a tensor from an arena for every
//            Weight: its value or its gradient; flat_layout does so with addresses that are never
//            read, and uses the distances between them
//
//   memory order   no block  | vectors of block 0 | .. | products of block 0 | .. | not trained
//   unit           0 (root)                            | 1                   | .. | none
//
// A split embedding precedes the rest of the root; the products of a block are ordered by unit.
// Blocks whose products share an arena use it in turn: a scope opens when the block changes, and
// frees the memory of the block before.
#include "ashlar/nn/weights.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "ashlar/nn/lora.h"
#include "ashlar/nn/make_branch.h"

namespace ashlar::nn {
namespace {

bool is_cut_by_heads(const ParameterInfo& info) {
  return info.is_cut_by(Grain::kQueryHead) || info.is_cut_by(Grain::kKeyHead);
}

// The number of a product's unit among the units of its block.
int64_t unit_in_block(const ParameterInfo& info, const UnitSplit& split) {
  const int cut_units = split.num_cut_units();
  if (split.experts && info.is_cut_by(Grain::kExpert)) return 1 + cut_units;
  if (is_cut_by_heads(info)) return std::min(cut_units, 1);
  return info.is_cut_by(Grain::kWidth) ? cut_units : 0;
}

Units units_of(const ModelSpec& spec, const UnitSplit& split) {
  return {spec.num_blocks(), split};
}

// Sets the members that follow from the share: the rows of each logical tensor here, one after
// another.
void finish(Stored& stored, int64_t block, const Units& units, const Share& share) {
  const ParameterInfo& first = stored.logical[0];
  stored.block = block;
  if (!stored.is_trained()) {
    // It is in no unit.
  } else if (stored.is_product()) {
    const int64_t unit = unit_in_block(first, share.units);
    stored.unit = units.first_of(block) + unit;
    stored.is_packed = unit == 0 || unit > share.units.num_cut_units();
  } else if (first.at_both_ends && units.split.embedding) {
    stored.unit = units.size() - 1;
  }
  const bool travels = is_cut_by_heads(first) || first.is_cut_by(Grain::kWidth);
  if (!stored.is_product() && share.units.has_cut_units() && travels) {
    for (ParameterInfo& info : stored.logical) info.share_after_share = true;
    if (stored.is_adapter) stored.operand_shape = first.shape, stored.is_packed = false;
  }
  stored.rows = {0};
  for (const ParameterInfo& info : stored.logical) {
    const Shape part = local_shape(info, share);
    if (stored.rows.size() == 1) stored.shape = part;
    stored.rows.push_back(stored.rows.back() + part[0]);
  }
  stored.shape[0] = stored.rows.back();
  ASHLAR_ASSERT(!stored.is_operand() || stored.operand_shape.numel() == stored.shape.numel());
}

}  // namespace

UnitKind Units::kind_of(int64_t unit) const {
  if (unit == 0) return UnitKind::kRoot;
  if (!of_block(unit)) return UnitKind::kEmbedding;
  const int64_t in_block = (unit - 1) % per_block();
  if (in_block == 0) return UnitKind::kBlock;
  if (in_block > split.num_cut_units()) return UnitKind::kExperts;
  return in_block == 1 ? UnitKind::kHeads : UnitKind::kWidths;
}

std::vector<const Stored*> in_memory_order(const ModelWeights& weights) {
  std::vector<const Stored*> list;
  for (const Stored& stored : weights.tensors) list.push_back(&stored);
  const auto key = [](const Stored* s) {
    const int kind = !s->is_trained() ? 3 : s->is_product() ? 2 : s->block >= 0 ? 1 : 0;
    const bool root = s->unit == 0;  // after a split embedding
    // The vectors of a block's branches precede the block's own.
    return std::tuple(kind, s->block, kind == 2 ? s->unit : int64_t(root),
                      kind == 1 && s->logical[0].applied == Applied::kStream);
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Stored* a, const Stored* b) { return key(a) < key(b); });
  return list;
}

ModelWeights::ModelWeights(const ModelSpec& whole, const Share& part, const InitSpec& init,
                           const TuneSpec& tune)
    : spec(whole), share(part), blocks(whole.blocks.size()) {
  const Stage& stage = share.stage;
  const Units units = units_of(spec, share.units);
  int64_t block = -1;
  const auto add_finished = [&](Stored stored) {
    finish(stored, block, units, share);
    tensors.push_back(std::move(stored));
  };
  const auto add = [&](Stored stored) {
    freeze(tune, stored);
    add_finished(std::move(stored));
    list_adapters(tune, Stored(tensors.back()), add_finished);
  };
  const LayerSpec root{spec, share, init, -1, "model."};
  const Shape table{spec.vocab_size, spec.hidden_size};
  const auto add_table = [&](const char* name, Weight& weight) {
    add({.weight = &weight,
         .logical = {{.name = name,
                      .shape = table,
                      .init = root.normal(),
                      .decay = true,
                      .applied = Applied::kStream,
                      .at_both_ends = &weight == &embed && spec.tied_head}},
         .operand_shape = &weight == &head() && stage.last() ? table : Shape{}});
  };
  if (stage.first() || (stage.last() && spec.tied_head))
    add_table("model.embed_tokens.weight", embed);
  if (stage.first() && spec.scaled_embedding()) {
    add({.weight = &input_scale,
         .logical = {stream_vector(root, "input_hidden_states_scale", 1.0)}});
    add({.weight = &input_bias, .logical = {stream_vector(root, "input_hidden_states_bias", 0.0)}});
  }
  for (block = 0; block < spec.num_blocks(); ++block) {
    if (!stage.holds(block)) continue;
    Block& b = blocks[size_t(block)];
    b.mixer = make_mixer(spec.blocks[size_t(block)].mixer);
    b.feed_forward = make_feed_forward(spec.blocks[size_t(block)].feed_forward);
    b.list({spec, share, init, block, "model.layers." + std::to_string(block) + "."}, add);
  }
  block = -1;
  if (!stage.last()) return;
  add({.weight = &norm, .logical = {norm_weight(root, "norm.weight")}});
  if (!spec.tied_head) add_table("lm_head.weight", own_head);
}

namespace {

// One strip that reaches as far back as the strips of both, with room for the larger set of strips.
ExchangeNeeds::StripShape room_for(const ExchangeNeeds& a, const ExchangeNeeds& b) {
  ExchangeNeeds::StripShape strip;
  for (const ExchangeNeeds* needs : {&a, &b})
    for (const auto& one : needs->strips()) strip.reach = std::max(strip.reach, one.reach);
  const int64_t numel = std::max(a.halo_numel(), b.halo_numel());
  strip.cols = (numel + strip.reach - 1) / strip.reach;
  return strip;
}

}  // namespace

ExchangeNeeds ModelWeights::needs() const {
  ExchangeNeeds all;
  for_each_block([&](const Block& block, int64_t) {
    const ExchangeNeeds needs = block.mixer->needs().tokens;
    if (all.strips().empty())
      all.most_strips = needs.most_strips;
    else if (!needs.strips().empty() && needs.most_strips != all.most_strips)
      all.most_strips = {room_for(all, needs)};
    if (needs.state.heads > 0) {
      ASHLAR_ASSERT(all.state.heads == 0 || all.state == needs.state);
      all.state = needs.state;
    }
    if (needs.key_cols > 0) {
      ASHLAR_ASSERT(all.key_cols == 0 ||
                    (all.key_cols == needs.key_cols && all.value_cols == needs.value_cols &&
                     all.key_copies == needs.key_copies));
      all.query_cols = needs.query_cols;
      all.key_cols = needs.key_cols;
      all.value_cols = needs.value_cols;
      all.head_dim = needs.head_dim;
      all.key_copies = needs.key_copies;
      all.num_turns = needs.num_turns;
    }
  });
  return all;
}

void ModelWeights::for_each_block(function_ref<void(Block&, int64_t)> use) {
  for (int64_t l = 0; l < spec.num_blocks(); ++l)
    if (share.stage.holds(l)) use(blocks[size_t(l)], l);
}

void ModelWeights::for_each_block(function_ref<void(const Block&, int64_t)> use) const {
  for (int64_t l = 0; l < spec.num_blocks(); ++l)
    if (share.stage.holds(l)) use(blocks[size_t(l)], l);
}

void ModelWeights::for_each(Visitor visit) const {
  for (const Stored& stored : tensors) {
    const Weight& w = *stored.weight;
    for (size_t i = 0; i < stored.logical.size(); ++i) {
      const int64_t begin = stored.rows[i], end = stored.rows[i + 1];
      if (begin == end) continue;  // nothing of this tensor is here
      const auto rows = [&](const Tensor& t) { return t ? t.slice(begin, end) : t; };
      visit(stored.logical[i], rows(w.value), rows(w.gradient));
    }
  }
}

std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, DType dtype) {
  const DType buffer_dtype = dtype == DType::kF64 ? dtype : DType::kF32;
  const ModelWeights model(spec);
  std::vector<LogicalTensor> list;
  for (const Stored& stored : model.tensors)
    for (const ParameterInfo& info : stored.logical)
      list.push_back({info.name, info.buffer ? buffer_dtype : dtype, info.shape,
                      info.buffer ? Role::kBuffer : Role::kParameter});
  return list;
}

namespace {

// Kernels write gradients of all vectors, also of frozen ones; products and tables are left out.
bool has_gradient(const Stored& stored) {
  const bool table = stored.block < 0 && stored.shape.ndim() == 2;
  return stored.is_trained() || (!stored.is_buffer() && !stored.is_operand() && !table);
}

}  // namespace

void lay_out(const ModelWeights& weights, Tensor Weight::*part, Arena& root, ArenaOfBlock products,
             const MemoryTypes& types) {
  std::optional<Arena::Scope> slot;
  int64_t block = -1;  // its products lie in `slot`
  for (const Stored* s : in_memory_order(weights)) {
    if (part == &Weight::gradient && !has_gradient(*s)) continue;
    const bool product = s->is_product(), taken_in_turn = product && s->is_trained();
    Arena& arena = taken_in_turn ? products(s->block) : root;
    if (&arena != &root && s->block != block) slot.emplace(arena), block = s->block;
    const DType dtype = taken_in_turn ? types.products
                        : product     ? types.frozen_products
                                      : types.usual;
    s->weight->*part = arena.take(dtype, s->shape);
  }
}

void lay_out_operands(const kernels::Context& ctx, const ModelWeights& weights, Arena& root,
                      ArenaOfBlock blocks, const Types& types, bool for_backward) {
  std::optional<Arena::Scope> slot;
  int64_t block = -1;
  for (const Stored& s : weights.tensors) {
    if (!s.is_operand()) continue;
    s.weight->operand = {.w = s.weight->value.view(s.operand_shape), .forward = {}, .backward = {}};
    if (!s.is_packed) continue;
    Arena& arena = s.is_product() && s.is_trained() ? blocks(s.block) : root;
    if (&arena != &root && s.block != block) slot.emplace(arena), block = s.block;
    const bool head = s.block < 0;
    const DType compute = head && weights.spec.head_fp32 ? types.wide : types.compute;
    kernels::Operand& operand = s.weight->operand;
    const auto layout =
        operand_layout(ctx, operand.groups(), operand.n(), operand.k(), compute, for_backward);
    if (layout.forward_numel > 0)
      operand.forward = arena.take(layout.dtype, {layout.forward_numel});
    if (layout.backward_numel > 0)
      operand.backward = arena.take(layout.dtype, {layout.backward_numel});
  }
}

FlatLayout flat_layout(const ModelSpec& whole, const Share& share, DType dtype,
                       const TuneSpec& tune) {
  const ModelWeights weights(whole, share, {}, tune);
  Arena root = Arena::addresses();  // never read: only their distances are used
  lay_out(weights, &Weight::gradient, root, [&](int64_t) -> Arena& { return root; },
          {dtype, dtype, dtype});
  FlatLayout flat;
  flat.units = units_of(whole, share.units);
  // A unit ends where the next one in memory begins.
  std::vector<const std::byte*> begins(size_t(flat.units.size()));
  flat.unit_numel.resize(begins.size());
  const std::byte *base = nullptr, *behind = nullptr;  // of all units
  int64_t unit = -1;                                   // the one at hand
  const auto end_unit = [&](const std::byte* end) {
    if (unit >= 0) flat.unit_numel[size_t(unit)] = (end - begins[size_t(unit)]) / size_of(dtype);
  };
  for (const Stored* s : in_memory_order(weights)) {
    const std::byte* data = s->weight->gradient.data;
    if (!base) base = data;
    if (!s->is_trained()) {
      if (!behind) behind = data;
      continue;
    }
    if (s->unit == unit) continue;
    end_unit(data);
    unit = s->unit;
    begins[size_t(unit)] = data;
  }
  end_unit(behind ? behind : base + root.used_bytes());
  for (const Stored& s : weights.tensors) {
    if (!s.is_trained()) continue;
    const int64_t row = s.shape.numel() / std::max<int64_t>(1, s.shape[0]);
    const int64_t offset = (s.weight->gradient.data - begins[size_t(s.unit)]) / size_of(dtype);
    for (size_t i = 0; i < s.logical.size(); ++i)
      if (s.rows[i] < s.rows[i + 1])
        flat.ranges.push_back(
            {s.unit, offset + s.rows[i] * row, (s.rows[i + 1] - s.rows[i]) * row});
  }
  return flat;
}

}  // namespace ashlar::nn
