#include "ashlar/kernels/norm.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// The type of parameters and statistics beside a stream.
DType wide_of(const Tensor& stream_TH) {
  return stream_TH.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

// Checks the tensors of a norm of h; y stands for dy in backward.
void check_norm(const Tensor& h_TH, const Tensor& w_H, const Tensor& y_TH, const Tensor& rstd_T) {
  ASHLAR_ASSERT(h_TH.shape.ndim() == 2 && is_real(h_TH.dtype));
  check_tensor(w_H, {h_TH.shape[1]}, wide_of(h_TH));
  check_tensor(rstd_T, {h_TH.shape[0]}, wide_of(h_TH));
  check_real(y_TH, h_TH.shape);
}

// The merge without parameters: a sum, perhaps with factors.
bool is_plain(const MergeParams& p) {
  return !p.hidden_scale_H && !p.hidden_bias_H && !p.residual_scale_H && !p.residual_bias_H;
}

void check_params(const MergeParams& p, const Tensor& stream_TH) {
  if (is_plain(p)) return;
  for (const Tensor* t :
       {&p.hidden_scale_H, &p.hidden_bias_H, &p.residual_scale_H, &p.residual_bias_H})
    check_tensor(*t, {stream_TH.shape[1]}, wide_of(stream_TH));
}

}  // namespace

void rms_norm_forward(const Context& ctx, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T, double weight_offset) {
  check_norm(h_TH, w_H, y_TH, rstd_T);
  const auto call = ctx.record("rms_norm_forward", h_TH.dtype,
                               {4 * h_TH.numel(), bytes_of({h_TH, w_H, y_TH, rstd_T})});
  ctx.ops->rms_norm_forward(ctx, eps, h_TH, w_H, y_TH, rstd_T, weight_offset);
}

void rms_norm_backward(const Context& ctx, const RmsNormBackward& x) {
  check_norm(x.h_TH, x.w_H, x.dy_TH, x.rstd_T);
  check_tensor(x.dh_TH, x.h_TH.shape, x.h_TH.dtype);
  for (const Tensor* t : {&x.dh_in_TH, &x.dy_in_TH})
    if (*t) check_tensor(*t, x.h_TH.shape, x.h_TH.dtype);
  check_tensor(x.dw_H, x.w_H.shape, x.w_H.dtype);
  const auto call = ctx.record(
      "rms_norm_backward", x.h_TH.dtype,
      {(x.dy_in_TH ? 12 : 11) * x.h_TH.numel(),
       bytes_of({x.dy_TH, x.h_TH, x.w_H, x.rstd_T, x.dh_in_TH, x.dy_in_TH, x.dh_TH, x.dw_H})});
  ctx.ops->rms_norm_backward(ctx, x);
}

void merge_norm_forward(const Context& ctx, const MergeNormForward& x) {
  const bool normed = bool(x.w_H);
  ASHLAR_ASSERT(bool(x.y_TH) == normed && bool(x.rstd_T) == normed);
  if (normed) check_norm(x.h_TH, x.w_H, x.y_TH, x.rstd_T);
  check_real(x.o_TH, x.h_TH.shape);
  check_tensor(x.r_TH, x.h_TH.shape, x.h_TH.dtype);
  check_params(x.params, x.h_TH);
  const bool plain = is_plain(x.params), normed_residual = bool(x.r_norm_H);
  ASHLAR_ASSERT(bool(x.r_rstd_T) == normed_residual && (plain || !normed_residual));
  if (normed_residual) check_norm(x.r_TH, x.r_norm_H, x.r_TH, x.r_rstd_T);
  const int64_t flop = (plain ? 1 : 4) + (normed ? 4 : 0) + (normed_residual ? 4 : 0);
  const auto call = ctx.record(
      "merge_norm_forward", x.h_TH.dtype,
      {flop * x.h_TH.numel(),
       bytes_of({x.o_TH, x.r_TH, x.h_TH, x.y_TH, x.rstd_T, x.w_H, x.r_norm_H, x.r_rstd_T}) +
           4 * x.params.hidden_scale_H.bytes()});
  ctx.ops->merge_norm_forward(ctx, x);
}

void merge_norm_backward(const Context& ctx, const MergeNormBackward& x) {
  const bool normed = bool(x.w_H);
  ASHLAR_ASSERT(bool(x.dy_TH) == normed && bool(x.rstd_T) == normed && bool(x.dw_H) == normed);
  if (normed) check_norm(x.dr_TH, x.w_H, x.dy_TH, x.rstd_T);
  ASHLAR_ASSERT(normed || (x.dh_in_TH && !x.h_TH && !x.dy_in_TH));
  const Shape& TH = x.dr_TH.shape;
  const DType stream = x.dr_TH.dtype;
  const bool plain = is_plain(x.params), read_summands = !plain || (normed && !x.h_TH);
  check_params(x.params, x.dr_TH);
  ASHLAR_ASSERT(is_plain(x.grads) == plain);
  check_params(x.grads, x.dr_TH);
  if (read_summands || x.o_TH) check_real(x.o_TH, TH);
  if (read_summands || x.r_TH) check_tensor(x.r_TH, TH, stream);
  for (const Tensor* t : {&x.h_TH, &x.dh_in_TH, &x.dy_in_TH})
    if (*t) check_tensor(*t, TH, stream);
  check_real(x.d_o_TH, TH);
  if (normed) check_tensor(x.dw_H, x.w_H.shape, x.w_H.dtype);
  const bool factors = x.factors.alpha != 1 || x.factors.beta != 1;
  const int64_t norm_flop =
      (plain ? 11 + int64_t(read_summands) : 14) + (x.dy_in_TH ? int64_t(1) : 0);
  const int64_t merge_flop = plain ? (factors ? 2 : 0) : 8;
  const int64_t summands = read_summands ? bytes_of({x.o_TH, x.r_TH}) : 0;
  const auto call = ctx.record("merge_norm_backward", stream,
                               {(merge_flop + (normed ? norm_flop : 0)) * x.dr_TH.numel(),
                                bytes_of({x.dy_TH, x.dh_in_TH, x.dy_in_TH, x.h_TH, x.rstd_T,
                                          x.d_o_TH, x.dr_TH, x.w_H, x.dw_H}) +
                                    summands + 8 * x.params.hidden_scale_H.bytes()});
  ctx.ops->merge_norm_backward(ctx, x);
}

}  // namespace ashlar::kernels
