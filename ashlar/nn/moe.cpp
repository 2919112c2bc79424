// How it works.  The parts, and what each reads and fills:
//
//   forward    route             m -> router's choices -> plan; m -> x_rows, sorted by expert
//              experts           x_rows -> gate_up -> act -> y_rows, by whoever has the expert
//              combine           y_rows, weights -> e;  e += the shared expert's
//   backward   combine_backward  de -> dy_rows, dchosen
//              experts_backward  dy_rows -> dact -> dgate_up -> dx_rows
//              route_backward    dchosen through the router -> dm;  dm += dx_rows
//
// Rows go to experts and back through ExpertExchange, forward and backward alike: a part posts
// them, the next receives them.  The shared expert, which needs no exchange, runs in between.
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

Matrix as_column(const Tensor& vector_T) {
  return Matrix::of(vector_T.view({vector_T.numel(), 1}));
}

}  // namespace

MoeShape MoeShape::of(const MoeSpec& whole, int64_t hidden_size, const Share& share) {
  const auto* zaya = std::get_if<MlpRouterSpec>(&whole.router);
  return {hidden_size, whole.num_experts, share.of(Grain::kWidth, whole.width).size(),
          whole.experts_of_token(), zaya && zaya->skip_output == SkipOutput::kIdentity};
}

void MoeWeights::list(const LayerSpec& layer, Router& router, StoredVisitor visit) {
  const auto& moe = std::get<MoeSpec>(layer.of_block().feed_forward);
  shape = MoeShape::of(moe, layer.model.hidden_size, layer.share);
  router.list(layer.under("gate."), visit);
  const auto [H, E, here, k, skip] = shape;
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
  if (moe.shared.width == 0) return;
  shared.emplace().list(layer.under("shared_expert."), moe.shared.width, visit);
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
  const auto [H, E, F, k, skip] = weights.shape;
  const int64_t T = num_tokens, R = T * k;
  Arena& arena = arenas.block;
  MoeSaved s;
  s.plan.row_of_expert_E1 = arena.take(DType::kI32, {E + 1});
  s.plan.token_of_row_R = arena.take(DType::kI32, {R});
  s.plan.row_of_token_Tk = arena.take(DType::kI32, {T, k});
  s.plan.count_X = arenas.lasting.take(DType::kI64, {E + 1});
  s.x_rows = arena.take(types.activation, {R, H});
  s.gate_up = arena.take(types.activation, {R, 2 * F});
  s.act = arena.take(types.activation, {R, F});
  s.y_rows = arena.take(types.stream, {R, H});
  if (!weights.shared) return s;
  s.shared = MlpSaved::make(arena, *weights.shared, types, T);
  s.shared_out = arena.take(types.stream, {T, H});
  if (weights.gated) s.gate = arena.take(types.stream, {T});
  return s;
}

void MoeBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                        int slot) {
  router_->lay_out(arenas, types, shape.num_tokens, slot);
  saved_.set(slot, MoeSaved::make(arenas, weights_, types, shape.num_tokens));
}

std::optional<ExpertLoad> MoeBranch::load(int slot) const {
  return ExpertLoad{saved_[slot].plan.count_X, router_->choice(slot).expert_Tk,
                    router_->losses(slot)};
}

void MoeBranch::forward(const Context& ctx, const Pass& pass, int part, const Tensor& m_TH,
                        const Carry& carry, const Tensor& e_TH) {
  if (part == 0)
    route(ctx, pass, m_TH, carry);
  else
    part == 1 ? experts(ctx, pass) : combine(ctx, pass, m_TH, e_TH);
}

void MoeBranch::backward(const Context& ctx, const Pass& pass, int part, const BackwardTensors& t) {
  if (part == 0)
    combine_backward(ctx, pass, t);
  else
    part == 1 ? experts_backward(ctx, pass) : route_backward(ctx, pass, t);
}

void MoeBranch::route(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                      const Carry& carry) const {
  const MoeSaved& saved = saved_[pass.slot];
  router_->forward(ctx, pass, m_TH, carry);
  route_plan(ctx, weights_.shape.E, router_->choice(pass.slot).expert_Tk, saved.plan);
  gather_rows(ctx, saved.plan, m_TH, saved.x_rows);
  pass.exchanges.experts->post_rows(ctx, pass, saved.plan, Matrix::of(saved.x_rows),
                                    Matrix::of(saved.y_rows));
  if (weights_.shared) shared(ctx, pass, m_TH);
}

void MoeBranch::shared(const Context& ctx, const Pass& pass, const Tensor& m_TH) const {
  const MoeSaved& saved = saved_[pass.slot];
  mlp_inner(ctx, pass, *weights_.shared, saved.shared, m_TH);
  mlp_output(ctx, pass, *weights_.shared, saved.shared, saved.shared_out);
  if (weights_.gated)
    linear_forward(ctx, pass.types.compute, Matrix::of(m_TH), weights_.shared_gate.operand,
                   as_column(saved.gate));
}

void MoeBranch::experts(const Context& ctx, const Pass& pass) const {
  const MoeSaved& saved = saved_[pass.slot];
  const auto [x, y, row_of_expert] = pass.exchanges.experts->receive_rows(ctx, pass);
  grouped_linear_forward(ctx, pass.types.compute, x, weights_.gate_up.operand, row_of_expert,
                         Matrix::of(saved.gate_up));
  swiglu_forward(ctx, row_of_expert, saved.gate_up, saved.act);
  grouped_linear_forward(ctx, pass.types.compute, Matrix::of(saved.act), weights_.down.operand,
                         row_of_expert, y);
  pass.exchanges.experts->post_results(ctx, pass);
}

void MoeBranch::combine(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                        const Tensor& e_TH) const {
  const MoeSaved& saved = saved_[pass.slot];
  pass.exchanges.experts->receive_results(ctx, pass);
  combine_forward(ctx, {.plan = saved.plan,
                        .identity = adds_skipped(weights_.shape, *pass.exchanges.experts),
                        .y_rows_RH = saved.y_rows,
                        .chosen_Tk = router_->choice(pass.slot).chosen_Tk,
                        .m_TH = m_TH,
                        .e_TH = e_TH});
  if (weights_.shared) shared_add_forward(ctx, saved.gate, saved.shared_out, e_TH);
}

void MoeBranch::combine_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  if (pass.replay) {
    route(ctx, pass, t.a, t.carry);
    experts(ctx, pass);
    pass.exchanges.experts->receive_results(ctx, pass);
  }
  Arena& workspace = *ctx.workspace;
  const Tensor& chosen = router_->choice(pass.slot).chosen_Tk;
  const auto [stream, activation, compute] = pass.types;
  const int64_t T = t.a.shape[0], R = chosen.numel();
  Gradients& g = gradients_;
  g.partial = workspace.take(stream, {weights_.gated ? R + T : R});
  g.dchosen = g.partial.slice(0, R).view(chosen.shape);
  if (weights_.gated) g.dgate = g.partial.slice(R, R + T);
  if (weights_.shared) g.dshared = workspace.take(stream, t.a.shape);
  g.dx_rows = workspace.take(activation, saved.x_rows.shape);
  g.outputs.emplace(workspace);
  g.dy_rows = gradient_room(ctx, pass, activation, saved.y_rows.shape);
  kernels::combine_backward(ctx, {.plan = saved.plan,
                                  .identity = adds_skipped(weights_.shape, *pass.exchanges.experts),
                                  .de_TH = t.d_o,
                                  .y_rows_RH = saved.y_rows,
                                  .chosen_Tk = chosen,
                                  .m_TH = t.a,
                                  .dy_rows_RH = g.dy_rows,
                                  .dchosen_Tk = g.dchosen});
  pass.exchanges.experts->post_rows(ctx, pass, saved.plan, Matrix::of(g.dy_rows),
                                    Matrix::of(g.dx_rows));
  if (weights_.shared) shared_backward(ctx, pass, t);
}

void MoeBranch::shared_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  const Arena::Scope scope(*ctx.workspace);
  Tensor ds = t.d_o;
  if (weights_.gated) {
    ds = gradient_room(ctx, pass, pass.types.activation, t.d_o.shape);
    shared_add_backward(ctx, {.de_TH = t.d_o,
                              .z_T = saved.gate,
                              .s_TH = saved.shared_out,
                              .ds_TH = ds,
                              .dz_T = gradients_.dgate});
  }
  mlp_backward(ctx, pass, *weights_.shared, saved.shared, t.a, ds, gradients_.dshared);
}

void MoeBranch::experts_backward(const Context& ctx, const Pass& pass) {
  const MoeWeights& w = weights_;
  const MoeSaved& saved = saved_[pass.slot];
  const auto [stream, activation, compute] = pass.types;
  const auto [dy, dx, row_of_expert] = pass.exchanges.experts->receive_rows(ctx, pass);
  const Tensor dact = ctx.workspace->take(activation, saved.act.shape);
  const Tensor dgate_up = gradient_room(ctx, pass, activation, saved.gate_up.shape);
  grouped_linear_backward_input(ctx, compute, dy, w.down.operand, row_of_expert, Matrix::of(dact));
  grouped_weight_gradient(ctx, pass, dy, Matrix::of(saved.act), row_of_expert, w.down.gradient);
  swiglu_backward(ctx, row_of_expert, dact, saved.gate_up, dgate_up);
  grouped_linear_backward_input(ctx, compute, Matrix::of(dgate_up), w.gate_up.operand,
                                row_of_expert, dx);
  grouped_weight_gradient(ctx, pass, Matrix::of(dgate_up), Matrix::of(saved.x_rows), row_of_expert,
                          w.gate_up.gradient);
  pass.exchanges.experts->post_results(ctx, pass);
  gradients_.outputs.reset();
}

void MoeBranch::route_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  ExpertExchange& experts = *pass.exchanges.experts;
  const Gradients& g = gradients_;
  experts.sum_partial(g.partial);
  router_->backward(ctx, pass, t.a, t.carry, g.dchosen, t.da);
  if (weights_.gated) gate_backward(ctx, pass, t);
  // The part of router and gate, which all compute alike, counts once.
  if (!experts.leads()) fill(ctx, t.da, 0.0);
  if (weights_.shared) add(ctx, g.dshared, t.da);
  experts.receive_results(ctx, pass);
  scatter_rows_add(ctx, {.plan = saved.plan,
                         .identity = adds_skipped(weights_.shape, experts),
                         .dx_rows_RH = g.dx_rows,
                         .chosen_Tk = router_->choice(pass.slot).chosen_Tk,
                         .de_TH = t.d_o,
                         .dm_TH = t.da});
}

void MoeBranch::gate_backward(const Context& ctx, const Pass& pass,
                              const BackwardTensors& t) const {
  const DType compute = pass.types.compute;
  const Matrix dgate = as_column(gradients_.dgate);
  weight_gradient(ctx, pass.at_once(), dgate, Matrix::of(t.a), weights_.shared_gate.gradient);
  linear_backward_input(ctx, compute, dgate, weights_.shared_gate.operand, Matrix::of(t.da), true);
}

}  // namespace ashlar::nn
