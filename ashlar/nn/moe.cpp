#include "ashlar/nn/moe.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::RoutePlan;

bool identity(const ModelSpec& spec) {
  return spec.skip_output == SkipOutput::kIdentity;
}

int64_t rows_in_use(const RoutePlan& plan, int64_t num_tokens) {
  const auto rows = plan.row_of_expert();
  return rows.empty() ? num_tokens : rows.back();
}

}  // namespace

void MoeWeights::take(Arena& arena, const ModelSpec& spec, int64_t layer, DType dtype, Part part) {
  const int64_t E = spec.num_experts, F = spec.moe_intermediate_size, H = spec.hidden_size;
  router.take(arena, spec, layer, dtype, part);
  if (part != Part::kProducts) return;
  gate_up = arena.take(dtype, {E, 2 * F, H});
  down = arena.take(dtype, {E, H, F});
}

void MoeWeights::for_each(const std::string& prefix, Visitor visit) const {
  router.for_each(prefix + "gate.", visit);
  const auto stack = [&](const char* name, const Tensor& tensor, Init init) {
    visit({.name = prefix + name,
           .init = init,
           .kind = OptimizerKind::kMuon,
           .decay = true,
           .product = true,
           .num_matrices = tensor.shape[0]},
          tensor);
  };
  stack("experts.gate_up_proj", gate_up, Init::kNormal);
  stack("experts.down_proj", down, Init::kOutput);
}

MoeSaved MoeSaved::make(Arena& arena, const ModelSpec& spec, const Types& types,
                        int64_t num_tokens) {
  const int64_t T = num_tokens, F = spec.moe_intermediate_size, H = spec.hidden_size;
  MoeSaved s;
  s.router = RouterSaved::make(arena, spec, types, T);
  s.plan.row_of_expert_E1 = arena.take(DType::kI32, {spec.num_experts + 1});
  s.plan.token_of_row_T = arena.take(DType::kI32, {T});
  s.plan.row_of_token_T = arena.take(DType::kI32, {T});
  s.plan.count_X = arena.take(DType::kI64, {spec.num_classes()});
  s.x_rows = arena.take(types.activation, {T, H});
  s.gate_up = arena.take(types.activation, {T, 2 * F});
  s.act = arena.take(types.activation, {T, F});
  s.y_rows = arena.take(types.stream, {T, H});
  return s;
}

void moe_forward(const Context& ctx, const ModelSpec& spec, const Types& types, const MoeWeights& w,
                 const MoeOperands& operands, const MoeSaved& saved, const Tensor& m_TH,
                 const Tensor& r_prev_TR, const Tensor& e_TH) {
  const RoutePlan& plan = saved.plan;
  router_forward(ctx, spec, types, w.router, operands.router, saved.router, m_TH, r_prev_TR);
  route_plan(ctx, spec.num_experts, saved.router.expert, plan);
  gather_rows(ctx, plan, m_TH, saved.x_rows);
  grouped_linear_forward(ctx, types.compute, Matrix::of(saved.x_rows), operands.gate_up,
                         plan.row_of_expert(), Matrix::of(saved.gate_up));
  swiglu_forward(ctx, rows_in_use(plan, m_TH.shape[0]), saved.gate_up, saved.act);
  grouped_linear_forward(ctx, types.compute, Matrix::of(saved.act), operands.down,
                         plan.row_of_expert(), Matrix::of(saved.y_rows));
  combine_forward(ctx, plan, identity(spec), saved.y_rows, saved.router.chosen, m_TH, e_TH);
}

void experts_backward(const Context& ctx, const ModelSpec& spec, const Types& types,
                      const MoeOperands& operands, const MoeSaved& saved, const Tensor& m_TH,
                      const Tensor& de_TH, const MoeWeights& gradients, const Tensor& dchosen_T,
                      const Tensor& dx_rows_TH, bool accumulate) {
  const RoutePlan& plan = saved.plan;
  const auto rows = plan.row_of_expert();
  const auto [stream, activation, compute] = types;
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dy_rows = workspace.take(activation, saved.y_rows.shape);
  const Tensor dact = workspace.take(activation, saved.act.shape);
  const Tensor dgate_up = workspace.take(activation, saved.gate_up.shape);
  combine_backward(ctx, plan, identity(spec), de_TH, saved.y_rows, saved.router.chosen, m_TH,
                   dy_rows, dchosen_T);
  grouped_linear_backward_input(ctx, compute, Matrix::of(dy_rows), operands.down, rows,
                                Matrix::of(dact));
  grouped_linear_backward_weight(ctx, compute, Matrix::of(dy_rows), Matrix::of(saved.act), rows,
                                 gradients.down, accumulate);
  swiglu_backward(ctx, rows_in_use(plan, m_TH.shape[0]), dact, saved.gate_up, dgate_up);
  grouped_linear_backward_input(ctx, compute, Matrix::of(dgate_up), operands.gate_up, rows,
                                Matrix::of(dx_rows_TH));
  grouped_linear_backward_weight(ctx, compute, Matrix::of(dgate_up), Matrix::of(saved.x_rows), rows,
                                 gradients.gate_up, accumulate);
}

void experts_input_backward(const Context& ctx, const ModelSpec& spec, const MoeSaved& saved,
                            const Tensor& de_TH, const Tensor& dx_rows_TH, const Tensor& dm_TH) {
  scatter_rows_add(ctx, saved.plan, identity(spec), dx_rows_TH, saved.router.chosen, de_TH, dm_TH);
}

void moe_backward(const Context& ctx, const ModelSpec& spec, const Types& types,
                  const MoeWeights& w, const MoeOperands& operands, const MoeSaved& saved,
                  const Tensor& m_TH, const Tensor& r_prev_TR, const Tensor& de_TH,
                  const Tensor& dr_next_TR, const MoeWeights& gradients, const Tensor& dr_prev_TR,
                  const Tensor& dm_TH, bool accumulate) {
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dchosen = workspace.take(types.stream, saved.router.chosen.shape);
  const Tensor dx_rows = workspace.take(types.activation, saved.x_rows.shape);
  experts_backward(ctx, spec, types, operands, saved, m_TH, de_TH, gradients, dchosen, dx_rows,
                   accumulate);
  router_backward(ctx, spec, types, w.router, operands.router, saved.router, m_TH, r_prev_TR,
                  dchosen, dr_next_TR, gradients.router, dr_prev_TR, dm_TH, accumulate);
  experts_input_backward(ctx, spec, saved, de_TH, dx_rows, dm_TH);
}

}  // namespace ashlar::nn
