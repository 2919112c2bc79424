#include <cmath>

#include "ashlar/kernels/cpu/norm_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

// The factor of channel i of a normed row.
template <template <typename> class Args, typename T>
T weight(const Args<T>& x, int64_t i) {
  return T(x.weight_offset) + x.w[i];
}

// Element i of row t of what a merge without parameters adds to o: r, or r normed.
template <typename T>
T residual(const NormArgs<T>& x, int64_t t, int64_t i) {
  const T r = x.r[t * x.H + i];
  return x.v ? (T(x.weight_offset) + x.v[i]) * r * x.rstd_r[t] : r;
}

template <typename T>
void norm_rows(const NormArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.H;
    T sum = 0;
    for (int64_t i = 0; i < x.H; ++i) {
      if (x.ao)
        x.h.set(row + i, (x.o[row + i] + x.bo[i]) * x.ao[i] + (x.r[row + i] + x.br[i]) * x.ar[i]);
      else if (x.o)
        x.h.set(row + i, T(x.factors.beta) * x.o[row + i] + T(x.factors.alpha) * residual(x, t, i));
      sum += x.h[row + i] * x.h[row + i];
    }
    if (!x.w) continue;
    const T rstd = T(1) / std::sqrt(sum / T(x.H) + T(x.eps));
    for (int64_t i = 0; i < x.H; ++i) x.y.set(row + i, weight(x, i) * x.h[row + i] * rstd);
    x.rstd.set(t, rstd);
  }
}

template <typename T>
void norm_gradient_rows(const NormGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  const int64_t H = x.H;
  T *dw = partial, *dao = x.w ? dw + H : dw, *dbo = dao + H, *dar = dbo + H, *dbr = dar + H;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * H;
    const T rstd = x.w ? x.rstd[t] : T(0);
    const auto merged = [&](int64_t i) {
      if (!x.ao) return T(x.factors.beta) * x.o[row + i] + T(x.factors.alpha) * x.r[row + i];
      return (x.o[row + i] + x.bo[i]) * x.ao[i] + (x.r[row + i] + x.br[i]) * x.ar[i];
    };
    const auto h = [&](int64_t i) { return x.h ? x.h[row + i] : as_stored(x.r, merged(i)); };
    const auto dy = [&](int64_t i) {
      return x.dy_in ? x.dy[row + i] + x.dy_in[row + i] : x.dy[row + i];
    };
    T mean = 0;  // of dy w h rstd
    for (int64_t i = 0; x.w && i < H; ++i) mean += dy(i) * weight(x, i) * h(i) * rstd / T(H);
    for (int64_t i = 0; i < H; ++i) {
      T dh = x.dh_in ? x.dh_in[row + i] : T(0);
      if (x.w) {
        const T normed = h(i) * rstd;
        dh += rstd * (dy(i) * weight(x, i) - normed * mean);
        dw[i] += dy(i) * normed;
        dh = as_stored(x.dr, dh);
      }
      if (x.ao) {
        dao[i] += dh * (x.o[row + i] + x.bo[i]);
        dbo[i] += dh * x.ao[i];
        dar[i] += dh * (x.r[row + i] + x.br[i]);
        dbr[i] += dh * x.ar[i];
      }
      if (x.d_o) x.d_o.set(row + i, dh * (x.ao ? x.ao[i] : T(x.factors.beta)));
      x.dr.set(row + i, dh * (x.ao ? x.ar[i] : T(x.factors.alpha)));
    }
  }
}

}  // namespace

void rms_norm_forward(const Context& ctx, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T, double weight_offset) {
  with_real(h_TH.dtype, [&]<typename Real>(Real) {
    const NormArgs<Real> args{.H = w_H.numel(),
                              .eps = eps,
                              .weight_offset = weight_offset,
                              .h = h_TH,
                              .w = w_H,
                              .y = y_TH,
                              .rstd = rstd_T};
    run_rows(ctx, h_TH.shape[0], args, norm_rows_fast, norm_rows<Real>);
  });
}

void rms_norm_backward(const Context& ctx, const RmsNormBackward& x) {
  with_real(x.h_TH.dtype, [&]<typename Real>(Real) {
    const NormGradientArgs<Real> args{.H = x.w_H.numel(),
                                      .weight_offset = x.weight_offset,
                                      .dy = x.dy_TH,
                                      .dh_in = x.dh_in_TH,
                                      .dy_in = x.dy_in_TH,
                                      .h = x.h_TH,
                                      .rstd = x.rstd_T,
                                      .w = x.w_H,
                                      .dr = x.dh_TH};
    run_summing_rows(ctx, x.h_TH.shape[0], {x.dw_H}, args, norm_gradient_rows_fast,
                     norm_gradient_rows<Real>);
  });
}

void merge_norm_forward(const Context& ctx, const MergeNormForward& x) {
  with_real(x.h_TH.dtype, [&]<typename Real>(Real) {
    const NormArgs<Real> args{.H = x.h_TH.shape[1],
                              .eps = x.eps,
                              .weight_offset = x.weight_offset,
                              .factors = x.factors,
                              .o = x.o_TH,
                              .r = x.r_TH,
                              .ao = x.params.hidden_scale_H,
                              .bo = x.params.hidden_bias_H,
                              .ar = x.params.residual_scale_H,
                              .br = x.params.residual_bias_H,
                              .v = x.r_norm_H,
                              .rstd_r = x.r_rstd_T,
                              .h = x.h_TH,
                              .w = x.w_H,
                              .y = x.y_TH,
                              .rstd = x.rstd_T};
    run_rows(ctx, x.h_TH.shape[0], args, norm_rows_fast, norm_rows<Real>);
  });
}

void merge_norm_backward(const Context& ctx, const MergeNormBackward& x) {
  const auto gradients = {x.dw_H, x.grads.hidden_scale_H, x.grads.hidden_bias_H,
                          x.grads.residual_scale_H, x.grads.residual_bias_H};
  with_real(x.dr_TH.dtype, [&]<typename Real>(Real) {
    const NormGradientArgs<Real> args{.H = x.dr_TH.shape[1],
                                      .weight_offset = x.weight_offset,
                                      .factors = x.factors,
                                      .dy = x.dy_TH,
                                      .dh_in = x.dh_in_TH,
                                      .dy_in = x.dy_in_TH,
                                      .o = x.o_TH,
                                      .r = x.r_TH,
                                      .ao = x.params.hidden_scale_H,
                                      .bo = x.params.hidden_bias_H,
                                      .ar = x.params.residual_scale_H,
                                      .br = x.params.residual_bias_H,
                                      .h = x.h_TH,
                                      .rstd = x.rstd_T,
                                      .w = x.w_H,
                                      .d_o = x.d_o_TH,
                                      .dr = x.dr_TH};
    run_summing_rows(ctx, x.dr_TH.shape[0], gradients, args, norm_gradient_rows_fast,
                     norm_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
