#include "ashlar/kernels/state_gates.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check_gla(const Matrix& x_TN, const Tensor& bias_N, const Tensor& log_decay_TN) {
  ASHLAR_ASSERT(is_stream(x_TN.dtype));
  check_tensor(bias_N, {x_TN.cols}, x_TN.dtype);
  check_tensor(log_decay_TN, {x_TN.rows, x_TN.cols}, x_TN.dtype);
}

// Checks the inputs and the gates, or the gates' gradients.
void check_delta(const Matrix& ba_T2H, const Tensor& a_log_H, const Tensor& dt_bias_H,
                 const Tensor& log_decay_TH, const Tensor& beta_TH) {
  ASHLAR_ASSERT(is_stream(ba_T2H.dtype) && ba_T2H.cols % 2 == 0);
  for (const Tensor* t : {&a_log_H, &dt_bias_H}) check_tensor(*t, {ba_T2H.cols / 2}, ba_T2H.dtype);
  for (const Tensor* t : {&log_decay_TH, &beta_TH})
    check_tensor(*t, {ba_T2H.rows, ba_T2H.cols / 2}, ba_T2H.dtype);
}

void check_gradient(const Matrix& dx, const Matrix& x) {
  ASHLAR_ASSERT(dx.rows == x.rows && dx.cols == x.cols && is_real(dx.dtype));
}

}  // namespace

void gla_gate_forward(const Context& ctx, const Matrix& x_TN, const Tensor& bias_N,
                      const Tensor& log_decay_TN) {
  check_gla(x_TN, bias_N, log_decay_TN);
  const auto call =
      ctx.record("gla_gate_forward", x_TN.dtype,
                 {10 * log_decay_TN.numel(), bytes_of(x_TN) + bytes_of({bias_N, log_decay_TN})});
  ctx.ops->gla_gate_forward(ctx, x_TN, bias_N, log_decay_TN);
}

void gla_gate_backward(const Context& ctx, const GlaGateBackward& x) {
  check_gla(x.x_TN, x.bias_N, x.dlog_decay_TN);
  check_gradient(x.dx_TN, x.x_TN);
  check_tensor(x.dbias_N, x.bias_N.shape, x.bias_N.dtype);
  const auto call = ctx.record(
      "gla_gate_backward", x.x_TN.dtype,
      {20 * x.dlog_decay_TN.numel(),
       bytes_of(x.x_TN) + bytes_of(x.dx_TN) + bytes_of({x.bias_N, x.dlog_decay_TN, x.dbias_N})});
  ctx.ops->gla_gate_backward(ctx, x);
}

void delta_gates_forward(const Context& ctx, const DeltaGatesForward& x) {
  check_delta(x.ba_T2H, x.a_log_H, x.dt_bias_H, x.log_decay_TH, x.beta_TH);
  const auto call = ctx.record(
      "delta_gates_forward", x.ba_T2H.dtype,
      {10 * x.ba_T2H.rows * x.ba_T2H.cols,
       bytes_of(x.ba_T2H) + bytes_of({x.a_log_H, x.dt_bias_H, x.log_decay_TH, x.beta_TH})});
  ctx.ops->delta_gates_forward(ctx, x);
}

void delta_gates_backward(const Context& ctx, const DeltaGatesBackward& x) {
  check_delta(x.ba_T2H, x.a_log_H, x.dt_bias_H, x.dlog_decay_TH, x.dbeta_TH);
  check_gradient(x.dba_T2H, x.ba_T2H);
  for (const Tensor* t : {&x.da_log_H, &x.ddt_bias_H})
    check_tensor(*t, x.a_log_H.shape, x.a_log_H.dtype);
  const auto call = ctx.record(
      "delta_gates_backward", x.ba_T2H.dtype,
      {20 * x.ba_T2H.rows * x.ba_T2H.cols, bytes_of(x.ba_T2H) + bytes_of(x.dba_T2H) +
                                               bytes_of({x.a_log_H, x.dt_bias_H, x.dlog_decay_TH,
                                                         x.dbeta_TH, x.da_log_H, x.ddt_bias_H})});
  ctx.ops->delta_gates_backward(ctx, x);
}

}  // namespace ashlar::kernels
