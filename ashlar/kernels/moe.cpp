#include "ashlar/kernels/moe.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// The stream type of a call is the type of its routing probabilities.
void check_rows(const RoutePlan& plan, std::initializer_list<Tensor> tokens, const Tensor& rows_RH,
                const Tensor& weight_Tk) {
  const Shape &TH = tokens.begin()->shape, &Tk = plan.row_of_token_Tk.shape;
  ASHLAR_ASSERT(is_stream(weight_Tk.dtype) && Tk.ndim() == 2 && Tk[0] == TH[0]);
  check_tensor(weight_Tk, Tk, weight_Tk.dtype);
  check_real(rows_RH, {Tk.numel(), TH[1]});
  for (const Tensor& t : tokens) check_real(t, TH);
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

void leave_out_padding(const Context& ctx, const Sequence& sequence, const Tensor& expert_Tk) {
  int64_t tokens = 0;
  for (const Segment& s : sequence.segments()) tokens += s.padding ? s.length : 0;
  if (tokens == 0) return;
  const int64_t T = sequence.num_tokens(), k = expert_Tk.numel() / T;
  ASHLAR_ASSERT(expert_Tk.numel() == T * k);
  check_tensor(expert_Tk, expert_Tk.shape, DType::kI32);
  const auto call = ctx.record("leave_out_padding", DType::kI32, {0, tokens * k * 4});
  ctx.ops->leave_out_padding(ctx, sequence, expert_Tk);
}

void route_plan(const Context& ctx, int64_t num_experts, const Tensor& expert_Tk,
                const RoutePlan& plan) {
  const int64_t R = expert_Tk.numel(), E = num_experts;
  ASHLAR_ASSERT(expert_Tk.shape.ndim() == 2);
  check_tensor(expert_Tk, expert_Tk.shape, DType::kI32);
  check_tensor(plan.row_of_token_Tk, expert_Tk.shape, DType::kI32);
  check_tensor(plan.token_of_row_R, {R}, DType::kI32);
  check_tensor(plan.row_of_expert_E1, {E + 1}, DType::kI32);
  check_tensor(plan.count_X, {E + 1}, DType::kI64);
  const auto call = ctx.record("route_plan", expert_Tk.dtype, {0, 3 * expert_Tk.bytes()});
  ctx.ops->route_plan(ctx, num_experts, expert_Tk, plan);
}

void gather_rows(const Context& ctx, const RoutePlan& plan, const Tensor& m_TH,
                 const Tensor& x_rows_RH) {
  const int64_t R = plan.token_of_row_R.numel();
  ASHLAR_ASSERT(m_TH.shape.ndim() == 2 && m_TH.shape[0] == plan.row_of_token_Tk.shape[0]);
  check_tensor(x_rows_RH, {R, m_TH.shape[1]}, m_TH.dtype);
  const auto call = ctx.record("gather_rows", m_TH.dtype,
                               {0, 2 * x_rows_RH.bytes() + plan.token_of_row_R.bytes()}, {},
                               TraceEvent::Varies::kExpertRows, R);
  ctx.ops->gather_rows(ctx, plan, m_TH, x_rows_RH);
}

void combine_forward(const Context& ctx, const CombineForward& x) {
  check_rows(x.plan, {x.e_TH, x.m_TH}, x.y_rows_RH, x.weight_Tk);
  const int64_t k = x.weight_Tk.shape[1];
  const auto call =
      ctx.record("combine_forward", x.e_TH.dtype,
                 {(2 * k - 1) * x.e_TH.numel(), bytes_of({x.y_rows_RH, x.e_TH, x.weight_Tk})});
  ctx.ops->combine_forward(ctx, x);
}

void combine_backward(const Context& ctx, const CombineBackward& x) {
  check_rows(x.plan, {x.de_TH, x.m_TH}, x.y_rows_RH, x.weight_Tk);
  check_real(x.dy_rows_RH, x.y_rows_RH.shape);
  check_tensor(x.dweight_Tk, x.weight_Tk.shape, x.weight_Tk.dtype);
  const auto call =
      ctx.record("combine_backward", x.de_TH.dtype,
                 {3 * x.y_rows_RH.numel(),
                  bytes_of({x.de_TH, x.y_rows_RH, x.dy_rows_RH, x.weight_Tk, x.dweight_Tk})});
  ctx.ops->combine_backward(ctx, x);
}

void scatter_rows_add(const Context& ctx, const ScatterRowsAdd& x) {
  check_rows(x.plan, {x.de_TH, x.dm_TH}, x.dx_rows_RH, x.weight_Tk);
  if (x.shared_TH) check_real(x.shared_TH, x.dm_TH.shape);
  const auto call = ctx.record("scatter_rows_add", x.dm_TH.dtype,
                               {x.dx_rows_RH.numel() + x.shared_TH.numel(),
                                bytes_of({x.dx_rows_RH, x.shared_TH, x.dm_TH, x.dm_TH})});
  ctx.ops->scatter_rows_add(ctx, x);
}

void shared_add_forward(const Context& ctx, const Tensor& z_T, const Tensor& s_TH,
                        const Tensor& e_TH) {
  check_real(s_TH, e_TH.shape);
  check_real(e_TH, e_TH.shape);
  if (z_T) check_tensor(z_T, {e_TH.shape[0]}, z_T.dtype);
  ASHLAR_ASSERT(!z_T || is_stream(z_T.dtype));
  const auto call = ctx.record("shared_add_forward", e_TH.dtype,
                               {(z_T ? 2 : 1) * e_TH.numel(), bytes_of({z_T, s_TH, e_TH, e_TH})});
  ctx.ops->shared_add_forward(ctx, z_T, s_TH, e_TH);
}

void shared_add_backward(const Context& ctx, const SharedAddBackward& x) {
  for (const Tensor* t : {&x.de_TH, &x.s_TH, &x.ds_TH}) check_real(*t, x.de_TH.shape);
  ASHLAR_ASSERT(is_stream(x.z_T.dtype));
  check_tensor(x.z_T, {x.de_TH.shape[0]}, x.z_T.dtype);
  check_tensor(x.dz_T, x.z_T.shape, x.z_T.dtype);
  const auto call =
      ctx.record("shared_add_backward", x.de_TH.dtype,
                 {3 * x.de_TH.numel(), bytes_of({x.de_TH, x.z_T, x.s_TH, x.ds_TH, x.dz_T})});
  ctx.ops->shared_add_backward(ctx, x);
}

void swiglu_forward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF) {
  check_swiglu(row_of_expert_E1, act_TF, gate_up_T2F);
  const auto call = ctx.record("swiglu_forward", act_TF.dtype,
                               {5 * act_TF.numel(), bytes_of({gate_up_T2F, act_TF})}, {},
                               varies(row_of_expert_E1), act_TF.shape[0]);
  ctx.ops->swiglu_forward(ctx, row_of_expert_E1, gate_up_T2F, act_TF);
}

void swiglu_backward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F) {
  check_swiglu(row_of_expert_E1, dact_TF, gate_up_T2F);
  check_swiglu(row_of_expert_E1, dact_TF, dgate_up_T2F);
  const auto call =
      ctx.record("swiglu_backward", dact_TF.dtype,
                 {11 * dact_TF.numel(), bytes_of({dact_TF, gate_up_T2F, dgate_up_T2F})}, {},
                 varies(row_of_expert_E1), dact_TF.shape[0]);
  ctx.ops->swiglu_backward(ctx, row_of_expert_E1, dact_TF, gate_up_T2F, dgate_up_T2F);
}

}  // namespace ashlar::kernels
