#include "ashlar/nn/moe.h"

#include "ashlar/kernels/copy.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::RoutePlan;

// Whether p * m of the skipped tokens is added here.
bool adds_skipped(const MoeShape& shape, const ExpertExchange& experts) {
  return shape.skip_identity && experts.leads();
}

}  // namespace

MoeShape MoeShape::of(const MoeSpec& whole, int64_t hidden_size, const Share& share) {
  return {hidden_size, whole.num_experts, share.of(Grain::kWidth, whole.width).size(),
          whole.skip_output == SkipOutput::kIdentity};
}

void MoeWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& moe = std::get<MoeSpec>(layer.of_block().feed_forward);
  shape = MoeShape::of(moe, layer.model.hidden_size, layer.share);
  router.list(layer.under("gate."), visit);
  const auto [H, E, here, skip] = shape;
  const int64_t F = moe.width;
  const Section gate{Grain::kWidth, F, 1, 0, F}, up{Grain::kWidth, F, 1, F, F};
  const auto stack = [&](const char* name, const Shape& whole, InitRule init, int64_t halves,
                         Cut cut) {
    return ParameterInfo{.name = layer.prefix + name,
                         .shape = whole,
                         .init = init,
                         .kind = OptimizerKind::kMuon,
                         .decay = true,
                         .num_matrices = E,
                         .halves = halves,
                         .cuts = {std::move(cut)}};
  };
  visit({.weight = &gate_up,
         .logical = {stack("experts.gate_up_proj", {E, 2 * F, H}, layer.normal(), 2,
                           {1, {gate, up}})},
         .operand_shape = {E, 2 * here, H}});
  visit({.weight = &down,
         .logical = {stack("experts.down_proj", {E, H, F}, layer.output(), 1, {2, {gate}})},
         .operand_shape = {E, H, here}});
}

MoeSaved MoeSaved::make(const SavedArenas& arenas, const MoeWeights& weights, const Types& types,
                        int64_t num_tokens) {
  const auto [H, E, F, skip] = weights.shape;
  const int64_t T = num_tokens;
  Arena& arena = arenas.block;
  MoeSaved s;
  s.router = RouterSaved::make(arenas, weights.router.shape, types, T);
  s.plan.row_of_expert_E1 = arena.take(DType::kI32, {E + 1});
  s.plan.token_of_row_T = arena.take(DType::kI32, {T});
  s.plan.row_of_token_T = arena.take(DType::kI32, {T});
  s.plan.count_X = arenas.lasting.take(DType::kI64, {E + 1});
  s.x_rows = arena.take(types.activation, {T, H});
  s.gate_up = arena.take(types.activation, {T, 2 * F});
  s.act = arena.take(types.activation, {T, F});
  s.y_rows = arena.take(types.stream, {T, H});
  return s;
}

void MoeBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                        int slot) {
  saved_.set(slot, MoeSaved::make(arenas, weights_, types, shape.num_tokens));
}

std::optional<ExpertLoad> MoeBranch::load(int slot) const {
  return ExpertLoad{saved_[slot].plan.count_X, saved_[slot].router.expert};
}

void MoeBranch::forward(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                        const Carry& carry, const Tensor& e_TH) {
  const MoeWeights& w = weights_;
  const MoeSaved& saved = saved_[pass.slot];
  const Types& types = pass.types;
  const RoutePlan& plan = saved.plan;
  router_forward(ctx, types, w.router, saved.router, m_TH, carry);
  route_plan(ctx, w.shape.E, saved.router.expert, plan);
  gather_rows(ctx, plan, m_TH, saved.x_rows);
  grouped_linear_forward(ctx, types.compute, Matrix::of(saved.x_rows), w.gate_up.operand,
                         plan.row_of_expert_E1, Matrix::of(saved.gate_up));
  swiglu_forward(ctx, plan.row_of_expert_E1, saved.gate_up, saved.act);
  grouped_linear_forward(ctx, types.compute, Matrix::of(saved.act), w.down.operand,
                         plan.row_of_expert_E1, Matrix::of(saved.y_rows));
  combine_forward(ctx, {.plan = plan,
                        .identity = adds_skipped(w.shape, *pass.exchanges.experts),
                        .y_rows_TH = saved.y_rows,
                        .chosen_T = saved.router.chosen,
                        .m_TH = m_TH,
                        .e_TH = e_TH});
}

void MoeBranch::backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeWeights& w = weights_;
  const MoeSaved& saved = saved_[pass.slot];
  const Tensor &m_TH = t.a, &de_TH = t.d_o, &dm_TH = t.da;
  ExpertExchange& experts = *pass.exchanges.experts;
  const bool accumulate = pass.accumulate;
  const RoutePlan& plan = saved.plan;
  const auto [stream, activation, compute] = pass.types;
  const bool skipped = adds_skipped(w.shape, experts);
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dchosen = workspace.take(stream, saved.router.chosen.shape);
  const Tensor dx_rows = workspace.take(activation, saved.x_rows.shape);
  {
    const Tensor& rows = plan.row_of_expert_E1;
    const Arena::Scope inner(workspace);
    const Tensor dy_rows = workspace.take(activation, saved.y_rows.shape);
    const Tensor dact = workspace.take(activation, saved.act.shape);
    const Tensor dgate_up = workspace.take(activation, saved.gate_up.shape);
    combine_backward(ctx, {.plan = plan,
                           .identity = skipped,
                           .de_TH = de_TH,
                           .y_rows_TH = saved.y_rows,
                           .chosen_T = saved.router.chosen,
                           .m_TH = m_TH,
                           .dy_rows_TH = dy_rows,
                           .dchosen_T = dchosen});
    grouped_linear_backward_input(ctx, compute, Matrix::of(dy_rows), w.down.operand, rows,
                                  Matrix::of(dact));
    grouped_linear_backward_weight(ctx, compute, Matrix::of(dy_rows), Matrix::of(saved.act), rows,
                                   w.down.gradient, accumulate);
    swiglu_backward(ctx, rows, dact, saved.gate_up, dgate_up);
    grouped_linear_backward_input(ctx, compute, Matrix::of(dgate_up), w.gate_up.operand, rows,
                                  Matrix::of(dx_rows));
    grouped_linear_backward_weight(ctx, compute, Matrix::of(dgate_up), Matrix::of(saved.x_rows),
                                   rows, w.gate_up.gradient, accumulate);
  }
  experts.sum_partial(dchosen);
  router_backward(ctx, pass, w.router, saved.router, m_TH, t.carry, dchosen, dm_TH);
  // The router's part, which all compute alike, counts once.
  if (!experts.leads()) fill(ctx, dm_TH, 0.0);
  scatter_rows_add(ctx, {.plan = plan,
                         .identity = skipped,
                         .dx_rows_TH = dx_rows,
                         .chosen_T = saved.router.chosen,
                         .de_TH = de_TH,
                         .dm_TH = dm_TH});
}

}  // namespace ashlar::nn
