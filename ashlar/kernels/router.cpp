#include "ashlar/kernels/router.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {

void router_mix_forward(const Context& ctx, const RouterMixForward& x) {
  const int64_t T = x.r_TR.shape[0], R = x.r_TR.shape[1];
  const DType stream = x.r_TR.dtype;
  ASHLAR_ASSERT(is_stream(stream) && bool(x.r_prev_TR) == bool(x.gamma_R));
  check_tensor(x.b_dn_R, {R}, stream);
  check_tensor(x.w_R, {R}, stream);
  check_tensor(x.rstd_T, {T}, stream);
  check_real(x.n_TR, x.r_TR.shape);
  if (x.gamma_R) {
    check_tensor(x.gamma_R, {R}, stream);
    check_tensor(x.r_prev_TR, x.r_TR.shape, stream);
  }
  const auto call = ctx.record(
      "router_mix_forward", x.r_TR.dtype,
      {7 * T * R, bytes_of({x.r_TR, x.r_TR, x.r_prev_TR, x.n_TR, x.rstd_T}) + 3 * x.w_R.bytes()});
  ctx.ops->router_mix_forward(ctx, x);
}

void router_mix_backward(const Context& ctx, const RouterMixBackward& x) {
  const int64_t T = x.r_TR.shape[0], R = x.r_TR.shape[1];
  const DType stream = x.r_TR.dtype;
  ASHLAR_ASSERT(is_stream(stream) && bool(x.r_prev_TR) == bool(x.gamma_R) &&
                bool(x.dgamma_R) == bool(x.gamma_R) && bool(x.dr_prev_TR) == bool(x.gamma_R));
  for (const Tensor* t : {&x.w_R, &x.db_dn_R, &x.dw_R}) check_tensor(*t, {R}, stream);
  check_tensor(x.rstd_T, {T}, stream);
  check_real(x.dn_TR, x.r_TR.shape);
  check_tensor(x.dr_TR, x.r_TR.shape, stream);
  check_real(x.dr_low_TR, x.r_TR.shape);
  for (const Tensor* t : {&x.dr_next_TR, &x.r_prev_TR, &x.dr_prev_TR})
    if (*t) check_tensor(*t, x.r_TR.shape, stream);
  const auto call =
      ctx.record("router_mix_backward", x.r_TR.dtype,
                 {16 * T * R, bytes_of({x.dn_TR, x.dr_next_TR, x.r_TR, x.r_prev_TR, x.dr_TR,
                                        x.dr_low_TR, x.dr_prev_TR, x.rstd_T}) +
                                  5 * x.w_R.bytes()});
  ctx.ops->router_mix_backward(ctx, x);
}

void bias_gelu_forward(const Context& ctx, const Tensor& z_TR, const Tensor& b_R,
                       const Tensor& s_TR) {
  ASHLAR_ASSERT(is_stream(z_TR.dtype));
  check_tensor(b_R, {z_TR.shape[1]}, z_TR.dtype);
  check_real(s_TR, z_TR.shape);
  const auto call =
      ctx.record("bias_gelu_forward", z_TR.dtype, {4 * z_TR.numel(), bytes_of({z_TR, b_R, s_TR})});
  ctx.ops->bias_gelu_forward(ctx, z_TR, b_R, s_TR);
}

void bias_gelu_backward(const Context& ctx, const BiasGeluBackward& x) {
  const DType stream = x.z_TR.dtype;
  ASHLAR_ASSERT(is_stream(stream));
  for (const Tensor* t : {&x.b_R, &x.db_R}) check_tensor(*t, {x.z_TR.shape[1]}, stream);
  for (const Tensor* t : {&x.ds_TR, &x.dz_TR}) check_real(*t, x.z_TR.shape);
  const auto call =
      ctx.record("bias_gelu_backward", stream,
                 {9 * x.z_TR.numel(), bytes_of({x.ds_TR, x.z_TR, x.b_R, x.dz_TR, x.db_R})});
  ctx.ops->bias_gelu_backward(ctx, x);
}

void router_select_forward(const Context& ctx, const RouterSelectForward& x) {
  const int64_t T = x.logits_TX.shape[0], X = x.logits_TX.shape[1];
  const DType stream = x.logits_TX.dtype;
  ASHLAR_ASSERT(is_stream(stream) && X > 0);
  check_tensor(x.bias_X, {X}, stream);
  check_tensor(x.p_TX, x.logits_TX.shape, stream);
  check_tensor(x.expert_T, {T}, DType::kI32);
  check_tensor(x.weight_T, {T}, stream);
  const auto call =
      ctx.record("router_select_forward", x.p_TX.dtype,
                 {6 * T * X, bytes_of({x.logits_TX, x.bias_X, x.p_TX, x.expert_T, x.weight_T})});
  ctx.ops->router_select_forward(ctx, x);
}

void router_select_backward(const Context& ctx, const RouterSelectBackward& x) {
  const int64_t T = x.p_TX.shape[0], X = x.p_TX.shape[1];
  const DType stream = x.p_TX.dtype;
  ASHLAR_ASSERT(is_stream(stream));
  check_tensor(x.dweight_T, {T}, stream);
  check_tensor(x.expert_T, {T}, DType::kI32);
  check_real(x.dlogits_TX, x.p_TX.shape);
  const auto call =
      ctx.record("router_select_backward", x.p_TX.dtype,
                 {3 * T * X, bytes_of({x.dweight_T, x.p_TX, x.expert_T, x.dlogits_TX})});
  ctx.ops->router_select_backward(ctx, x);
}

}  // namespace ashlar::kernels
