#include "ashlar/kernels/norm.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels {
namespace {

void check_norm(const Tensor& h_TH, const Tensor& w_H, const Tensor& y_TH, const Tensor& rstd_T) {
  ASHLAR_ASSERT(h_TH.shape.ndim() == 2 && y_TH.shape == h_TH.shape && is_real(y_TH.dtype));
  ASHLAR_ASSERT(w_H.shape == Shape{h_TH.shape[1]} && rstd_T.shape == Shape{h_TH.shape[0]});
  ASHLAR_ASSERT(is_stream(h_TH.dtype) && w_H.dtype == h_TH.dtype && rstd_T.dtype == h_TH.dtype);
}

void check_merge(const Tensor& o_TH, const Tensor& r_TH, const MergeParams& p) {
  ASHLAR_ASSERT(o_TH.shape == r_TH.shape && is_real(o_TH.dtype) && is_real(r_TH.dtype));
  for (const Tensor* t :
       {&p.hidden_scale_H, &p.hidden_bias_H, &p.residual_scale_H, &p.residual_bias_H})
    ASHLAR_ASSERT(t->shape == Shape{r_TH.shape[1]} && t->dtype == r_TH.dtype);
}

}  // namespace

void rms_norm_forward(const Context& ctx, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T) {
  check_norm(h_TH, w_H, y_TH, rstd_T);
  const int64_t T = h_TH.shape[0], H = h_TH.shape[1];
  ctx.record("rms_norm_forward", h_TH.shape, {4 * T * H, bytes_of({h_TH, w_H, y_TH, rstd_T})});
  cpu::rms_norm_forward(ctx, eps, h_TH, w_H, y_TH, rstd_T);
}

void rms_norm_backward(const Context& ctx, const Tensor& dy_TH, const Tensor& h_TH,
                       const Tensor& w_H, const Tensor& rstd_T, const Tensor& dh_in_TH,
                       const Tensor& dh_TH, const Tensor& dw_H) {
  check_norm(h_TH, w_H, dy_TH, rstd_T);
  ASHLAR_ASSERT(dh_TH.shape == h_TH.shape && dh_TH.dtype == h_TH.dtype && dw_H.shape == w_H.shape);
  ASHLAR_ASSERT(!dh_in_TH || (dh_in_TH.shape == h_TH.shape && dh_in_TH.dtype == h_TH.dtype));
  const int64_t T = h_TH.shape[0], H = h_TH.shape[1];
  ctx.record("rms_norm_backward", h_TH.shape,
             {11 * T * H, bytes_of({dy_TH, h_TH, w_H, rstd_T, dh_in_TH, dh_TH, dw_H})});
  cpu::rms_norm_backward(ctx, dy_TH, h_TH, w_H, rstd_T, dh_in_TH, dh_TH, dw_H);
}

void merge_norm_forward(const Context& ctx, double eps, const Tensor& o_TH, const Tensor& r_TH,
                        const MergeParams& params, const Tensor& w_H, const Tensor& h_TH,
                        const Tensor& y_TH, const Tensor& rstd_T) {
  check_norm(h_TH, w_H, y_TH, rstd_T);
  check_merge(o_TH, r_TH, params);
  ASHLAR_ASSERT(h_TH.shape == r_TH.shape && h_TH.dtype == r_TH.dtype);
  const int64_t T = h_TH.shape[0], H = h_TH.shape[1];
  ctx.record("merge_norm_forward", h_TH.shape,
             {8 * T * H, bytes_of({o_TH, r_TH, h_TH, y_TH, rstd_T}) + 5 * w_H.bytes()});
  cpu::merge_norm_forward(ctx, eps, o_TH, r_TH, params, w_H, h_TH, y_TH, rstd_T);
}

void merge_norm_backward(const Context& ctx, const Tensor& dy_TH, const Tensor& dh_in_TH,
                         const Tensor& o_TH, const Tensor& r_TH, const Tensor& h_TH,
                         const Tensor& rstd_T, const MergeParams& params, const Tensor& w_H,
                         const Tensor& d_o_TH, const Tensor& dr_TH, const MergeParams& grads,
                         const Tensor& dw_H) {
  check_norm(r_TH, w_H, dy_TH, rstd_T);
  check_merge(o_TH, r_TH, params);
  check_merge(d_o_TH, dr_TH, grads);
  ASHLAR_ASSERT(dr_TH.shape == r_TH.shape && dr_TH.dtype == r_TH.dtype && dw_H.shape == w_H.shape);
  ASHLAR_ASSERT(!h_TH || (h_TH.shape == r_TH.shape && h_TH.dtype == r_TH.dtype));
  ASHLAR_ASSERT(!dh_in_TH || (dh_in_TH.shape == r_TH.shape && dh_in_TH.dtype == r_TH.dtype));
  const int64_t T = r_TH.shape[0], H = r_TH.shape[1];
  ctx.record("merge_norm_backward", r_TH.shape,
             {22 * T * H, bytes_of({dy_TH, dh_in_TH, o_TH, r_TH, h_TH, rstd_T, d_o_TH, dr_TH}) +
                              10 * w_H.bytes()});
  cpu::merge_norm_backward(ctx, dy_TH, dh_in_TH, o_TH, r_TH, h_TH, rstd_T, params, w_H, d_o_TH,
                           dr_TH, grads, dw_H);
}

}  // namespace ashlar::kernels
