#include "ashlar/kernels/cpu/linear_heads_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/linear_heads_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/vector_math-inl.h"
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE Activated mapped(FeatureMap map, V x) {
  if (map == FeatureMap::kIdentity) return {x, set(1)};
  if (map == FeatureMap::kSilu) return silu(x);
  const auto above = hn::Gt(x, set(0));
  if (map == FeatureMap::kRelu)
    return {hn::IfThenElseZero(above, x), hn::IfThenElseZero(above, set(1))};
  const V power = exp_approx(hn::Min(x, set(0)));  // elu + 1
  return {hn::IfThenElse(above, hn::Add(x, set(1)), power), hn::IfThenElse(above, set(1), power)};
}

// hat = f(x) scale, of `count` elements.
void map_row(FeatureMap map, const Cells<float>& from, int64_t at, float scale,
             const Cells<float>& hat, int64_t to, int64_t count) {
  for_lanes(count, [&](int64_t i, auto n) HWY_ATTR {
    store(hn::Mul(mapped(map, load(from, at + i, n)).value, set(scale)), hat, to + i, n);
  });
}

// v, and 0 in lanes behind a row, which a map need not leave 0.
HWY_INLINE V used(V v, Full) {
  return v;
}
HWY_INLINE V used(V v, Tail tail) {
  return hn::IfThenElseZero(hn::FirstN(D(), size_t(tail.count)), v);
}

// rstd of the head from `at` on.
float unit_scale(const LinearHeadsArgs<float>& x, int64_t at) {
  V squares = set(0);
  for_lanes(x.s.dk, [&](int64_t i, auto n) HWY_ATTR {
    const V u = used(mapped(x.s.keys, load(x.qkv, at + i, n)).value, n);
    squares = hn::MulAdd(u, u, squares);
  });
  return 1.0f / std::sqrt(sum_of_lanes(squares) + float(kUnitEps));
}

void linear_heads_rows(const LinearHeadsArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t V = x.s.H * x.s.dv, values = x.s.width() - V;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < 2 * x.s.K; ++head) {
      const LinearHead p = linear_head(x.s, t, head);
      const int64_t at = t * x.stride + p.column;
      const float rstd = x.s.unit_keys ? unit_scale(x, at) : 1;
      if (x.s.unit_keys) (p.key ? x.rstd_k : x.rstd_q).set(p.rstd, rstd);
      map_row(x.s.keys, x.qkv, at, rstd, p.key ? x.khat : x.qhat, p.in_hat, x.s.dk);
    }
    map_row(x.s.values, x.qkv, t * x.stride + values, 1, x.vhat, t * V, V);
  }
}

// dx = f'(x) scale (g - f(x) along), of `count` elements from `at` on in qkv and `to` in dqkv.
void map_gradient(const LinearHeadsGradientArgs<float>& x, FeatureMap map, int64_t at, int64_t to,
                  const Cells<float>& g, int64_t in_g, float scale, float along, int64_t count) {
  for_lanes(count, [&](int64_t i, auto n) HWY_ATTR {
    const Activated u = mapped(map, load(x.qkv, at + i, n));
    const V du = hn::NegMulAdd(u.value, set(along), load(g, in_g + i, n));
    store(hn::Mul(u.slope, hn::Mul(set(scale), du)), x.dqkv, to + i, n);
  });
}

// sum(g f(x)) of a head.
float sum_along(const LinearHeadsGradientArgs<float>& x, int64_t at, const Cells<float>& g,
                int64_t in_g) {
  V sum = set(0);
  for_lanes(x.s.dk, [&](int64_t i, auto n) HWY_ATTR {
    sum = hn::MulAdd(load(g, in_g + i, n), mapped(x.s.keys, load(x.qkv, at + i, n)).value, sum);
  });
  return sum_of_lanes(sum);
}

void linear_heads_gradient_rows(const LinearHeadsGradientArgs<float>& x, int64_t begin,
                                int64_t end) {
  const int64_t V = x.s.H * x.s.dv, values = x.s.width() - V;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < 2 * x.s.K; ++head) {
      const LinearHead p = linear_head(x.s, t, head);
      const Cells<float>& g = p.key ? x.dkhat : x.dqhat;
      const int64_t at = t * x.stride + p.column, to = t * x.dstride + p.column;
      float rstd = 1, along = 0;
      if (x.s.unit_keys) {
        rstd = (p.key ? x.rstd_k : x.rstd_q)[p.rstd];
        along = sum_along(x, at, g, p.in_hat) * rstd * rstd;
      }
      map_gradient(x, x.s.keys, at, to, g, p.in_hat, rstd, along, x.s.dk);
    }
    map_gradient(x, x.s.values, t * x.stride + values, t * x.dstride + values, x.dvhat, t * V, 1, 0,
                 V);
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(linear_heads_rows);
HWY_EXPORT(linear_heads_gradient_rows);

void linear_heads_rows_fast(const LinearHeadsArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(linear_heads_rows))(args, begin, end);
}
void linear_heads_gradient_rows_fast(const LinearHeadsGradientArgs<float>& args, int64_t begin,
                                     int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(linear_heads_gradient_rows))(args, begin, end);
}

}  // namespace ashlar::kernels::cpu
#endif
