#include "ashlar/kernels/norm.h"

#include <cmath>

#include "ashlar/kernels/cpu/norm_args.h"

namespace ashlar::kernels {
namespace {

template <typename T>
void norm_rows(const NormArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.H;
    T sum = 0;
    for (int64_t i = 0; i < x.H; ++i) {
      if (x.o)
        x.h.set(row + i, (x.o[row + i] + x.bo[i]) * x.ao[i] + (x.r[row + i] + x.br[i]) * x.ar[i]);
      sum += x.h[row + i] * x.h[row + i];
    }
    const T rstd = T(1) / std::sqrt(sum / T(x.H) + T(x.eps));
    for (int64_t i = 0; i < x.H; ++i) x.y.set(row + i, x.w[i] * x.h[row + i] * rstd);
    x.rstd.set(t, rstd);
  }
}

template <typename T>
void norm_gradient_rows(const NormGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  const int64_t H = x.H;
  T *dw = partial, *dao = dw + H, *dbo = dao + H, *dar = dbo + H, *dbr = dar + H;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * H;
    const T rstd = x.rstd[t];
    const auto h = [&](int64_t i) {
      if (x.h) return x.h[row + i];
      return (x.o[row + i] + x.bo[i]) * x.ao[i] + (x.r[row + i] + x.br[i]) * x.ar[i];
    };
    T mean = 0;  // of dy w h rstd
    for (int64_t i = 0; i < H; ++i) mean += x.dy[row + i] * x.w[i] * h(i) * rstd / T(H);
    for (int64_t i = 0; i < H; ++i) {
      const T normed = h(i) * rstd, dy = x.dy[row + i];
      T dh = rstd * (dy * x.w[i] - normed * mean);
      if (x.dh_in) dh += x.dh_in[row + i];
      dw[i] += dy * normed;
      if (x.o) {
        dao[i] += dh * (x.o[row + i] + x.bo[i]);
        dbo[i] += dh * x.ao[i];
        dar[i] += dh * (x.r[row + i] + x.br[i]);
        dbr[i] += dh * x.ar[i];
        x.d_o.set(row + i, dh * x.ao[i]);
      }
      x.dr.set(row + i, x.o ? dh * x.ar[i] : dh);
    }
  }
}

void check_norm(const Tensor& h_TH, const Tensor& w_H, const Tensor& y_TH, const Tensor& rstd_T) {
  ASHLAR_ASSERT(h_TH.shape.ndim() == 2 && y_TH.shape == h_TH.shape && is_real(y_TH.dtype));
  ASHLAR_ASSERT(w_H.shape == Shape{h_TH.shape[1]} && rstd_T.shape == Shape{h_TH.shape[0]});
  ASHLAR_ASSERT(h_TH.dtype == DType::kF32 || h_TH.dtype == DType::kF64);
  ASHLAR_ASSERT(w_H.dtype == h_TH.dtype && rstd_T.dtype == h_TH.dtype);
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
  if (ctx.meta()) return;
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const C none;
    const NormArgs<Real> args{H,    eps,  none,    none,   none,    none,
                              none, none, C(h_TH), C(w_H), C(y_TH), C(rstd_T)};
    run_rows(ctx, T, args, norm_rows_fast, norm_rows<Real>);
  });
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
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, {dw_H});
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const C none;
    const NormGradientArgs<Real> args{H,    C(dy_TH), C(dh_in_TH), none, none,   C(h_TH), C(rstd_T),
                                      none, none,     none,        none, C(w_H), none,    C(dh_TH)};
    run_summing_rows(ctx, T, {dw_H}, args, norm_gradient_rows_fast, norm_gradient_rows<Real>);
  });
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
  if (ctx.meta()) return;
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const NormArgs<Real> args{H,
                              eps,
                              C(o_TH),
                              C(r_TH),
                              C(params.hidden_scale_H),
                              C(params.hidden_bias_H),
                              C(params.residual_scale_H),
                              C(params.residual_bias_H),
                              C(h_TH),
                              C(w_H),
                              C(y_TH),
                              C(rstd_T)};
    run_rows(ctx, T, args, norm_rows_fast, norm_rows<Real>);
  });
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
  const auto gradients = {dw_H, grads.hidden_scale_H, grads.hidden_bias_H, grads.residual_scale_H,
                          grads.residual_bias_H};
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, gradients);
  with_real(r_TH.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const NormGradientArgs<Real> args{H,
                                      C(dy_TH),
                                      C(dh_in_TH),
                                      C(o_TH),
                                      C(r_TH),
                                      C(h_TH),
                                      C(rstd_T),
                                      C(params.hidden_scale_H),
                                      C(params.hidden_bias_H),
                                      C(params.residual_scale_H),
                                      C(params.residual_bias_H),
                                      C(w_H),
                                      C(d_o_TH),
                                      C(dr_TH)};
    run_summing_rows(ctx, T, gradients, args, norm_gradient_rows_fast, norm_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels
