#include <algorithm>
#include <cmath>

#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/router_args.h"
#include "ashlar/kernels/moe.h"

namespace ashlar::kernels::cpu {
namespace {

// erfc is accurate for negative x too, where 1 + erf would cancel.
template <typename T>
T gelu(T x) {
  return x / 2 * std::erfc(-x * T(M_SQRT1_2));
}

template <typename T>
T gelu_slope(T x) {
  const T density = std::exp(-x * x / 2) * T(0.39894228040143267794);  // 1 / sqrt(2 pi)
  return std::erfc(-x * T(M_SQRT1_2)) / 2 + x * density;
}

template <typename T>
void mix_rows(const MixArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.R;
    T sum = 0;
    for (int64_t i = 0; i < x.R; ++i) {
      x.r.add(row + i, x.gamma ? x.b[i] + x.gamma[i] * x.r_prev[row + i] : x.b[i]);
      sum += x.r[row + i] * x.r[row + i];
    }
    const T rstd = T(1) / std::sqrt(sum / T(x.R) + T(x.eps));
    x.rstd.set(t, rstd);
    for (int64_t i = 0; i < x.R; ++i) x.n.set(row + i, x.w[i] * x.r[row + i] * rstd);
  }
}

template <typename T>
void mix_gradient_rows(const MixGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  T *db = partial, *dw = db + x.R, *dgamma = dw + x.R;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.R;
    const T rstd = x.rstd[t];
    T mean = 0;  // <dn w, r rstd> / R: the part of dn w along r, to which the norm is blind
    for (int64_t i = 0; i < x.R; ++i) mean += x.dn[row + i] * x.w[i] * x.r[row + i] * rstd / T(x.R);
    for (int64_t i = 0; i < x.R; ++i) {
      const T normed = x.r[row + i] * rstd, dn = x.dn[row + i];
      T dr = rstd * (dn * x.w[i] - normed * mean);
      if (x.dr_next) dr += x.dr_next[row + i];
      dw[i] += dn * normed;
      db[i] += dr;
      x.dr.set(row + i, dr);
      x.dr_low.set(row + i, dr);
      if (!x.gamma) continue;
      dgamma[i] += dr * x.r_prev[row + i];
      x.dr_prev.set(row + i, x.gamma[i] * dr);
    }
  }
}

template <typename T>
void gelu_rows(const GeluArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.R; ++i) x.s.set(t * x.R + i, gelu(x.z[t * x.R + i] + x.b[i]));
}

template <typename T>
void gelu_gradient_rows(const GeluGradientArgs<T>& x, int64_t begin, int64_t end, T* db) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, at = t * x.R; i < x.R; ++i, ++at) {
      const T dz = x.ds[at] * gelu_slope(x.z[at] + x.b[i]);
      x.dz.set(at, dz);
      db[i] += dz;
    }
}

template <typename T>
void select_rows(const SelectArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.X;
    T largest = x.logits[row], sum = 0;  // taken off, so that no exponential is infinite
    for (int64_t i = 1; i < x.X; ++i) largest = std::max(largest, x.logits[row + i]);
    for (int64_t i = 0; i < x.X; ++i) sum += std::exp(x.logits[row + i] - largest);
    for (int64_t i = 0; i < x.X; ++i) x.p.set(row + i, std::exp(x.logits[row + i] - largest) / sum);
    int64_t best = 0;
    for (int64_t i = 1; i < x.X; ++i)
      if (x.p[row + i] + x.bias[i] > x.p[row + best] + x.bias[best]) best = i;  // ties stay
    x.expert[t] = int32_t(best);
    x.weight.set(t, x.p[row + best]);
  }
}

template <typename T>
void select_gradient_rows(const SelectGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.X, chosen = x.expert[t];
    const T scale = chosen == kNoClass ? T(0) : x.dweight[t] * x.p[row + chosen];
    for (int64_t i = 0; i < x.X; ++i)
      x.dlogits.set(row + i, scale * ((i == chosen ? T(1) : T(0)) - x.p[row + i]));
  }
}

}  // namespace

void router_mix_forward(const Context& ctx, const RouterMixForward& x) {
  const int64_t T = x.r_TR.shape[0], R = x.r_TR.shape[1];
  with_real(x.r_TR.dtype, [&]<typename Real>(Real) {
    const MixArgs<Real> args{.R = R,
                             .eps = x.eps,
                             .r = x.r_TR,
                             .b = x.b_dn_R,
                             .r_prev = x.r_prev_TR,
                             .gamma = x.gamma_R,
                             .w = x.w_R,
                             .n = x.n_TR,
                             .rstd = x.rstd_T};
    run_rows(ctx, T, args, mix_rows_fast, mix_rows<Real>);
  });
}

void router_mix_backward(const Context& ctx, const RouterMixBackward& x) {
  const int64_t T = x.r_TR.shape[0], R = x.r_TR.shape[1];
  with_real(x.r_TR.dtype, [&]<typename Real>(Real) {
    const MixGradientArgs<Real> args{.R = R,
                                     .dn = x.dn_TR,
                                     .dr_next = x.dr_next_TR,
                                     .r = x.r_TR,
                                     .r_prev = x.r_prev_TR,
                                     .gamma = x.gamma_R,
                                     .w = x.w_R,
                                     .rstd = x.rstd_T,
                                     .dr = x.dr_TR,
                                     .dr_low = x.dr_low_TR,
                                     .dr_prev = x.dr_prev_TR};
    run_summing_rows(ctx, T, {x.db_dn_R, x.dw_R, x.dgamma_R}, args, mix_gradient_rows_fast,
                     mix_gradient_rows<Real>);
  });
}

void bias_gelu_forward(const Context& ctx, const Tensor& z_TR, const Tensor& b_R,
                       const Tensor& s_TR) {
  with_real(z_TR.dtype, [&]<typename Real>(Real) {
    const GeluArgs<Real> args{.R = b_R.numel(), .z = z_TR, .b = b_R, .s = s_TR};
    run_rows(ctx, z_TR.shape[0], args, gelu_rows_fast, gelu_rows<Real>);
  });
}

void bias_gelu_backward(const Context& ctx, const BiasGeluBackward& x) {
  with_real(x.z_TR.dtype, [&]<typename Real>(Real) {
    const GeluGradientArgs<Real> args{
        .R = x.b_R.numel(), .ds = x.ds_TR, .z = x.z_TR, .b = x.b_R, .dz = x.dz_TR};
    run_summing_rows(ctx, x.z_TR.shape[0], {x.db_R}, args, gelu_gradient_rows_fast,
                     gelu_gradient_rows<Real>);
  });
}

void router_select_forward(const Context& ctx, const RouterSelectForward& x) {
  const int64_t T = x.logits_TX.shape[0], X = x.logits_TX.shape[1];
  with_real(x.p_TX.dtype, [&]<typename Real>(Real) {
    const SelectArgs<Real> args{.X = X,
                                .logits = x.logits_TX,
                                .bias = x.bias_X,
                                .p = x.p_TX,
                                .weight = x.weight_T,
                                .expert = ints(x.expert_T)};
    run_rows(ctx, T, args, select_rows_fast, select_rows<Real>);
  });
}

void router_select_backward(const Context& ctx, const RouterSelectBackward& x) {
  const int64_t T = x.p_TX.shape[0], X = x.p_TX.shape[1];
  with_real(x.p_TX.dtype, [&]<typename Real>(Real) {
    const SelectGradientArgs<Real> args{.X = X,
                                        .dweight = x.dweight_T,
                                        .p = x.p_TX,
                                        .dlogits = x.dlogits_TX,
                                        .expert = ints(x.expert_T)};
    run_rows(ctx, T, args, select_gradient_rows_fast, select_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
