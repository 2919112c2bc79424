// The shape, the tensors and the memory of a mixture.
#include <cmath>

#include "ashlar/nn/moe.h"

namespace ashlar::nn {

MoeShape MoeShape::of(const MoeSpec& whole, int64_t hidden_size, const Share& share) {
  const auto* zaya = std::get_if<MlpRouterSpec>(&whole.router);
  return {.H = hidden_size,
          .E = whole.num_experts,
          .F = share.of(Grain::kExpertWidth, whole.width).size(),
          .k = whole.experts_of_token(),
          .skip_identity = zaya && zaya->skip_output == SkipOutput::kIdentity,
          .E_here = share.of(Grain::kExpert, whole.num_experts).size()};
}

int64_t rows_of_round(int64_t rows, const Share& share) {
  const double all = std::min(share.expert_rows, double(share.experts.count)) * double(rows);
  return int64_t(std::ceil(all / 2.0));  // two rounds are in flight at a time
}

void MoeWeights::list(const LayerSpec& layer, Router& router, StoredVisitor visit) {
  const auto& moe = std::get<MoeSpec>(layer.of_block().feed_forward);
  share = layer.share;
  shape = MoeShape::of(moe, layer.model.hidden_size, share);
  router.list(layer.under("gate."), visit);
  const int64_t H = shape.H, E = shape.E, E_here = shape.E_here, here = shape.F, F = moe.width;
  const Section expert{Grain::kExpert, E, 1, 0, E};
  const Section gate{Grain::kExpertWidth, F, 1, 0, F}, up{Grain::kExpertWidth, F, 1, F, F};
  const auto stack = [&](const char* name, const Shape& whole, InitRule init, int64_t halves,
                         Cut cut) {
    return ParameterInfo{.name = layer.prefix + name,
                         .shape = whole,
                         .init = init,
                         .kind = OptimizerKind::kMuon,
                         .decay = true,
                         .num_matrices = E,
                         .halves = halves,
                         .cuts = {{0, {expert}}, std::move(cut)}};
  };
  visit({.weight = &gate_up,
         .logical = {stack("experts.gate_up_proj", {E, 2 * F, H}, layer.normal(), 2,
                           {1, {gate, up}})},
         .operand_shape = {E_here, 2 * here, H}});
  visit({.weight = &down,
         .logical = {stack("experts.down_proj", {E, H, F}, layer.output(), 1, {2, {gate}})},
         .operand_shape = {E_here, H, here}});
  if (moe.shared.width == 0) return;
  shared.emplace().list(layer.under("shared_expert."), moe.shared.width, Grain::kExpertWidth,
                        visit);
  gated = moe.shared.gate;
  if (!gated) return;
  visit({.weight = &shared_gate,
         .logical = {{.name = layer.prefix + "shared_expert_gate.weight",
                      .shape = {1, H},
                      .init = layer.normal(),
                      .kind = OptimizerKind::kAdamW,  // a classifier, as the router's matrix is
                      .decay = true}},
         .operand_shape = {1, H}});
}

MoeSaved MoeSaved::make(const SavedArenas& arenas, const MoeWeights& weights, const Types& types,
                        int64_t num_tokens) {
  const MoeShape& z = weights.shape;
  const int64_t H = z.H, E = z.E, F = z.F, k = z.k, T = num_tokens, R = T * k;
  Arena& arena = arenas.block;
  MoeSaved s;
  s.plan.row_of_expert_E1 = arena.take(DType::kI32, {E + 1});
  s.plan.token_of_row_R = arena.take(DType::kI32, {R});
  s.plan.row_of_token_Tk = arena.take(DType::kI32, {T, k});
  s.plan.count_X = arenas.lasting.take(DType::kI64, {E + 1});
  s.x_rows = arena.take(types.activation, {R, H});
  const auto take_products = [&](MoeSaved::Room& room, int64_t rows) {
    room.gate_up = arena.take(types.activation, {rows, 2 * F});
    room.act = arena.take(types.activation, {rows, F});
  };
  const int ranks = weights.share.experts.count;
  if (ranks == 1) take_products(s.rooms[0], R);
  s.y_rows = arena.take(types.activation, {R, H});
  if (ranks > 1) {
    const int64_t rows = rows_of_round(R, weights.share);
    for (MoeSaved::Room& room : s.rooms) {
      room.x = arena.take(types.activation, {rows, H});
      room.y = arena.take(types.activation, {rows, H});
      room.row_of_expert = arena.take(DType::kI32, {z.E_here + 1});
      take_products(room, rows);
    }
  }
  if (!weights.shared) return s;
  s.shared = MlpSaved::make(arena, *weights.shared, types, T);
  s.shared_out = arena.take(types.activation, {T, H});
  if (weights.gated) s.gate = arena.take(types.wide, {T});
  return s;
}

}  // namespace ashlar::nn
