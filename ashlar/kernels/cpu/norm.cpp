#include <cmath>

#include "ashlar/kernels/cpu/norm_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
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

}  // namespace

void rms_norm_forward(const Context& ctx, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T) {
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    const NormArgs<Real> args{
        .H = w_H.numel(), .eps = eps, .h = h_TH, .w = w_H, .y = y_TH, .rstd = rstd_T};
    run_rows(ctx, h_TH.shape[0], args, norm_rows_fast, norm_rows<Real>);
  });
}

void rms_norm_backward(const Context& ctx, const Tensor& dy_TH, const Tensor& h_TH,
                       const Tensor& w_H, const Tensor& rstd_T, const Tensor& dh_in_TH,
                       const Tensor& dh_TH, const Tensor& dw_H) {
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    const NormGradientArgs<Real> args{.H = w_H.numel(),
                                      .dy = dy_TH,
                                      .dh_in = dh_in_TH,
                                      .h = h_TH,
                                      .rstd = rstd_T,
                                      .w = w_H,
                                      .dr = dh_TH};
    run_summing_rows(ctx, h_TH.shape[0], {dw_H}, args, norm_gradient_rows_fast,
                     norm_gradient_rows<Real>);
  });
}

void merge_norm_forward(const Context& ctx, double eps, const Tensor& o_TH, const Tensor& r_TH,
                        const MergeParams& params, const Tensor& w_H, const Tensor& h_TH,
                        const Tensor& y_TH, const Tensor& rstd_T) {
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    const NormArgs<Real> args{.H = w_H.numel(),
                              .eps = eps,
                              .o = o_TH,
                              .r = r_TH,
                              .ao = params.hidden_scale_H,
                              .bo = params.hidden_bias_H,
                              .ar = params.residual_scale_H,
                              .br = params.residual_bias_H,
                              .h = h_TH,
                              .w = w_H,
                              .y = y_TH,
                              .rstd = rstd_T};
    run_rows(ctx, h_TH.shape[0], args, norm_rows_fast, norm_rows<Real>);
  });
}

void merge_norm_backward(const Context& ctx, const Tensor& dy_TH, const Tensor& dh_in_TH,
                         const Tensor& o_TH, const Tensor& r_TH, const Tensor& h_TH,
                         const Tensor& rstd_T, const MergeParams& params, const Tensor& w_H,
                         const Tensor& d_o_TH, const Tensor& dr_TH, const MergeParams& grads,
                         const Tensor& dw_H) {
  with_real(r_TH.dtype, [&]<typename Real>(Real) {
    const NormGradientArgs<Real> args{.H = w_H.numel(),
                                      .dy = dy_TH,
                                      .dh_in = dh_in_TH,
                                      .o = o_TH,
                                      .r = r_TH,
                                      .ao = params.hidden_scale_H,
                                      .bo = params.hidden_bias_H,
                                      .ar = params.residual_scale_H,
                                      .br = params.residual_bias_H,
                                      .h = h_TH,
                                      .rstd = rstd_T,
                                      .w = w_H,
                                      .d_o = d_o_TH,
                                      .dr = dr_TH};
    run_summing_rows(ctx, r_TH.shape[0],
                     {dw_H, grads.hidden_scale_H, grads.hidden_bias_H, grads.residual_scale_H,
                      grads.residual_bias_H},
                     args, norm_gradient_rows_fast, norm_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
