// How it works.  The plain arithmetic, token by token and head by head.  Backward of a head x with
// u = f(x) and g the gradient of its hat:
//
//   dx = f'(x) rstd (g - u rstd sum(g u rstd))     scaled to unit length
//   dx = f'(x) g                                   not scaled
#include <cmath>

#include "ashlar/kernels/cpu/activations.h"
#include "ashlar/kernels/cpu/linear_heads_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
Activated<T> mapped(FeatureMap map, T x) {
  switch (map) {
    case FeatureMap::kSilu:
      return silu(x);
    case FeatureMap::kRelu:
      return x > 0 ? Activated<T>{x, 1} : Activated<T>{0, 0};
    case FeatureMap::kEluPlusOne:
      return x > 0 ? Activated<T>{x + 1, 1} : Activated<T>{std::exp(x), std::exp(x)};
    default:
      return {x, 1};
  }
}

template <typename T>
void head_row(const LinearHeadsArgs<T>& x, int64_t t, const LinearHead& p) {
  const auto u = [&](int64_t i) {
    return mapped(x.s.keys, x.qkv[t * x.stride + p.column + i]).value;
  };
  T rstd = 1;
  if (x.s.unit_keys) {
    T squares = 0;
    for (int64_t i = 0; i < x.s.dk; ++i) squares += u(i) * u(i);
    rstd = T(1) / std::sqrt(squares + T(kUnitEps));
    (p.key ? x.rstd_k : x.rstd_q).set(p.rstd, rstd);
  }
  for (int64_t i = 0; i < x.s.dk; ++i) (p.key ? x.khat : x.qhat).set(p.in_hat + i, u(i) * rstd);
}

template <typename T>
void linear_heads_rows(const LinearHeadsArgs<T>& x, int64_t begin, int64_t end) {
  const int64_t V = x.s.H * x.s.dv, values = x.s.width() - V;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < 2 * x.s.K; ++head) head_row(x, t, linear_head(x.s, t, head));
    for (int64_t i = 0; i < V; ++i)
      x.vhat.set(t * V + i, mapped(x.s.values, x.qkv[t * x.stride + values + i]).value);
  }
}

template <typename T>
void head_gradient(const LinearHeadsGradientArgs<T>& x, int64_t t, const LinearHead& p) {
  const Cells<T>& g = p.key ? x.dkhat : x.dqhat;
  const auto u = [&](int64_t i) { return mapped(x.s.keys, x.qkv[t * x.stride + p.column + i]); };
  T rstd = 1, along = 0;
  if (x.s.unit_keys) {
    rstd = (p.key ? x.rstd_k : x.rstd_q)[p.rstd];
    for (int64_t i = 0; i < x.s.dk; ++i) along += g[p.in_hat + i] * u(i).value * rstd;
  }
  for (int64_t i = 0; i < x.s.dk; ++i) {
    const T du = rstd * (g[p.in_hat + i] - u(i).value * rstd * along);
    x.dqkv.set(t * x.dstride + p.column + i, u(i).slope * du);
  }
}

template <typename T>
void linear_heads_gradient_rows(const LinearHeadsGradientArgs<T>& x, int64_t begin, int64_t end) {
  const int64_t V = x.s.H * x.s.dv, values = x.s.width() - V;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < 2 * x.s.K; ++head) head_gradient(x, t, linear_head(x.s, t, head));
    for (int64_t i = 0; i < V; ++i) {
      const T slope = mapped(x.s.values, x.qkv[t * x.stride + values + i]).slope;
      x.dqkv.set(t * x.dstride + values + i, slope * x.dvhat[t * V + i]);
    }
  }
}

}  // namespace

void linear_heads_forward(const Context& ctx, const LinearHeadsForward& x) {
  with_real(x.qkv.dtype, [&]<typename Real>(Real) {
    const LinearHeadsArgs<Real> args{.s = x.shape,
                                     .stride = x.qkv.stride,
                                     .qkv = x.qkv,
                                     .qhat = x.qhat,
                                     .khat = x.khat,
                                     .vhat = x.vhat,
                                     .rstd_q = x.rstd_q_TK,
                                     .rstd_k = x.rstd_k_TK};
    run_rows(ctx, x.qkv.rows, args, linear_heads_rows_fast, linear_heads_rows<Real>);
  });
}

void linear_heads_backward(const Context& ctx, const LinearHeadsBackward& x) {
  with_real(x.qkv.dtype, [&]<typename Real>(Real) {
    const LinearHeadsGradientArgs<Real> args{.s = x.shape,
                                             .stride = x.qkv.stride,
                                             .dstride = x.dqkv.stride,
                                             .qkv = x.qkv,
                                             .rstd_q = x.rstd_q_TK,
                                             .rstd_k = x.rstd_k_TK,
                                             .dqhat = x.dqhat,
                                             .dkhat = x.dkhat,
                                             .dvhat = x.dvhat,
                                             .dqkv = x.dqkv};
    run_rows(ctx, x.qkv.rows, args, linear_heads_gradient_rows_fast,
             linear_heads_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
