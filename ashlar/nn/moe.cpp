// How it works.  The parts, and what each reads and fills:
//
//   forward    route             m -> router's choices -> plan; m -> x_rows, sorted by expert
//              experts           x_rows -> gate_up -> act -> y_rows, by whoever has the expert
//              combine           y_rows, probabilities -> e
//   backward   combine_backward  de -> dy_rows, dchosen
//              experts_backward  dy_rows -> dact -> dgate_up -> dx_rows
//              route_backward    dchosen through the router -> dm;  dm += dx_rows
//
// Rows go to experts and back through ExpertExchange, forward and backward alike: a part posts
// them, the next receives them.
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
  return {hidden_size, whole.num_experts, share.of(Grain::kExpertWidth, whole.width).size(),
          whole.skip_output == SkipOutput::kIdentity};
}

void MoeWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& moe = std::get<MoeSpec>(layer.of_block().feed_forward);
  shape = MoeShape::of(moe, layer.model.hidden_size, layer.share);
  router.list(layer.under("gate."), visit);
  const auto [H, E, here, skip] = shape;
  const int64_t F = moe.width;
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
  router_forward(ctx, pass.types, weights_.router, saved.router, m_TH, carry);
  route_plan(ctx, weights_.shape.E, saved.router.expert, saved.plan);
  gather_rows(ctx, saved.plan, m_TH, saved.x_rows);
  pass.exchanges.experts->post_rows(ctx, pass, saved.plan, Matrix::of(saved.x_rows),
                                    Matrix::of(saved.y_rows));
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
                        .y_rows_TH = saved.y_rows,
                        .chosen_T = saved.router.chosen,
                        .m_TH = m_TH,
                        .e_TH = e_TH});
}

void MoeBranch::combine_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  if (pass.replay) {
    route(ctx, pass, t.a, t.carry);
    experts(ctx, pass);
    pass.exchanges.experts->receive_results(ctx, pass);
  }
  Arena& workspace = *ctx.workspace;
  Gradients& g = gradients_;
  g.dchosen = workspace.take(pass.types.stream, saved.router.chosen.shape);
  g.dx_rows = workspace.take(pass.types.activation, saved.x_rows.shape);
  g.outputs.emplace(workspace);
  g.dy_rows = gradient_room(ctx, pass, pass.types.activation, saved.y_rows.shape);
  kernels::combine_backward(ctx, {.plan = saved.plan,
                                  .identity = adds_skipped(weights_.shape, *pass.exchanges.experts),
                                  .de_TH = t.d_o,
                                  .y_rows_TH = saved.y_rows,
                                  .chosen_T = saved.router.chosen,
                                  .m_TH = t.a,
                                  .dy_rows_TH = g.dy_rows,
                                  .dchosen_T = g.dchosen});
  pass.exchanges.experts->post_rows(ctx, pass, saved.plan, Matrix::of(g.dy_rows),
                                    Matrix::of(g.dx_rows));
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
  experts.sum_partial(g.dchosen);
  router_backward(ctx, pass, weights_.router, saved.router, t.a, t.carry, g.dchosen, t.da);
  // The router's part, which all compute alike, counts once.
  if (!experts.leads()) fill(ctx, t.da, 0.0);
  experts.receive_results(ctx, pass);
  scatter_rows_add(ctx, {.plan = saved.plan,
                         .identity = adds_skipped(weights_.shape, experts),
                         .dx_rows_TH = g.dx_rows,
                         .chosen_T = saved.router.chosen,
                         .de_TH = t.d_o,
                         .dm_TH = t.da});
}

}  // namespace ashlar::nn
