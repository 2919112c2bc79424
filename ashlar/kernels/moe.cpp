#include "ashlar/kernels/moe.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels {
namespace {

// The stream type of a call is the type of its routing probabilities.
void check_rows(const RoutePlan& plan, std::initializer_list<Tensor> matrices,
                const Tensor& chosen_T) {
  const int64_t T = plan.row_of_token_T.numel();
  ASHLAR_ASSERT(is_stream(chosen_T.dtype));
  check_tensor(chosen_T, {T}, chosen_T.dtype);
  for (const Tensor& m : matrices)
    ASHLAR_ASSERT(m.shape == matrices.begin()->shape && m.shape[0] == T && is_real(m.dtype));
}

void check_swiglu(const Tensor& row_of_expert_E1, const Tensor& act_TF, const Tensor& gate_up_T2F) {
  ASHLAR_ASSERT(!row_of_expert_E1 || row_of_expert_E1.dtype == DType::kI32);
  ASHLAR_ASSERT(act_TF.shape.ndim() == 2);
  check_real(act_TF, act_TF.shape);
  check_real(gate_up_T2F, {act_TF.shape[0], 2 * act_TF.shape[1]});
}

TraceEvent::Varies varies(const Tensor& row_of_expert_E1) {
  return row_of_expert_E1 ? TraceEvent::Varies::kExpertRows : TraceEvent::Varies::kNo;
}

}  // namespace

void route_plan(const Context& ctx, int64_t num_experts, const Tensor& expert_T,
                const RoutePlan& plan) {
  const int64_t T = expert_T.numel(), E = num_experts;
  for (const Tensor* t : {&expert_T, &plan.token_of_row_T, &plan.row_of_token_T})
    check_tensor(*t, {T}, DType::kI32);
  check_tensor(plan.row_of_expert_E1, {E + 1}, DType::kI32);
  check_tensor(plan.count_X, {E + 1}, DType::kI64);
  const auto call = ctx.record("route_plan", expert_T.dtype, {0, 3 * expert_T.bytes()});
  cpu::route_plan(ctx, num_experts, expert_T, plan);
}

void gather_rows(const Context& ctx, const RoutePlan& plan, const Tensor& m_TH,
                 const Tensor& x_rows_TH) {
  ASHLAR_ASSERT(m_TH.shape.ndim() == 2 && m_TH.shape[0] == plan.row_of_token_T.numel());
  check_tensor(x_rows_TH, m_TH.shape, m_TH.dtype);
  const auto call =
      ctx.record("gather_rows", m_TH.dtype, {0, bytes_of({m_TH, x_rows_TH, plan.token_of_row_T})},
                 TraceEvent::Varies::kExpertRows, m_TH.shape[0]);
  cpu::gather_rows(ctx, plan, m_TH, x_rows_TH);
}

void combine_forward(const Context& ctx, const CombineForward& x) {
  check_rows(x.plan, {x.e_TH, x.y_rows_TH, x.m_TH}, x.chosen_T);
  const auto call = ctx.record("combine_forward", x.e_TH.dtype,
                               {x.e_TH.numel(), bytes_of({x.y_rows_TH, x.e_TH, x.chosen_T})});
  cpu::combine_forward(ctx, x);
}

void combine_backward(const Context& ctx, const CombineBackward& x) {
  check_rows(x.plan, {x.de_TH, x.y_rows_TH, x.m_TH, x.dy_rows_TH}, x.chosen_T);
  check_tensor(x.dchosen_T, x.chosen_T.shape, x.chosen_T.dtype);
  const auto call =
      ctx.record("combine_backward", x.de_TH.dtype,
                 {3 * x.de_TH.numel(),
                  bytes_of({x.de_TH, x.y_rows_TH, x.dy_rows_TH, x.chosen_T, x.dchosen_T})});
  cpu::combine_backward(ctx, x);
}

void scatter_rows_add(const Context& ctx, const ScatterRowsAdd& x) {
  check_rows(x.plan, {x.dx_rows_TH, x.de_TH, x.dm_TH}, x.chosen_T);
  const auto call = ctx.record("scatter_rows_add", x.dm_TH.dtype,
                               {x.dm_TH.numel(), x.dx_rows_TH.bytes() + 2 * x.dm_TH.bytes()});
  cpu::scatter_rows_add(ctx, x);
}

void swiglu_forward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF) {
  check_swiglu(row_of_expert_E1, act_TF, gate_up_T2F);
  const auto call = ctx.record("swiglu_forward", act_TF.dtype,
                               {5 * act_TF.numel(), bytes_of({gate_up_T2F, act_TF})},
                               varies(row_of_expert_E1), act_TF.shape[0]);
  cpu::swiglu_forward(ctx, row_of_expert_E1, gate_up_T2F, act_TF);
}

void swiglu_backward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F) {
  check_swiglu(row_of_expert_E1, dact_TF, gate_up_T2F);
  check_swiglu(row_of_expert_E1, dact_TF, dgate_up_T2F);
  const auto call =
      ctx.record("swiglu_backward", dact_TF.dtype,
                 {11 * dact_TF.numel(), bytes_of({dact_TF, gate_up_T2F, dgate_up_T2F})},
                 varies(row_of_expert_E1), dact_TF.shape[0]);
  cpu::swiglu_backward(ctx, row_of_expert_E1, dact_TF, gate_up_T2F, dgate_up_T2F);
}

}  // namespace ashlar::kernels
