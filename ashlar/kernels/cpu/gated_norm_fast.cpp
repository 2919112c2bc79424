#include "ashlar/kernels/cpu/gated_norm_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/gated_norm_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/vector_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

// g(z) and its slope of vector i of a group.
template <typename Count>
HWY_INLINE Activated gate_at(const GatedNormArgs<float>& x, const NormGroup& p, int64_t i,
                             Count n) {
  if (x.s.gate == OutputGate::kNone) return {set(1), set(0)};
  const V z = load(x.z, p.in_z + i, n);
  if (x.s.gate == OutputGate::kSilu) return silu(z);
  const V sigma = sigmoid(z);
  return {sigma, hn::Mul(sigma, hn::Sub(set(1), sigma))};
}

template <typename Body>
HWY_INLINE void for_groups(const GatedNormArgs<float>& x, int64_t begin, int64_t end, Body body) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t g = 0; g < x.s.G; ++g) body(norm_group(x, t, g));
}

void square_rows(const GatedNormArgs<float>& x, int64_t begin, int64_t end) {
  for_groups(x, begin, end, [&](const NormGroup& p) HWY_ATTR {
    V sum = set(0);
    for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
      const V own = load(x.x, p.in_x + i, n);
      sum = hn::MulAdd(own, own, sum);
    });
    x.squares.set(p.in_sums, sum_of_lanes(sum));
  });
}

void norm_rows(const GatedNormArgs<float>& x, int64_t begin, int64_t end) {
  for_groups(x, begin, end, [&](const NormGroup& p) HWY_ATTR {
    const V rstd = set(rstd_of(x, p));
    for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
      const V normed = hn::Mul(load(x.x, p.in_x + i, n), rstd);
      const V weighed = hn::Mul(load(x.w, p.in_w + i, n), normed);
      store(hn::Mul(weighed, gate_at(x, p, i, n).value), x.y, p.in_x + i, n);
    });
  });
}

void dot_rows(const GatedNormArgs<float>& x, int64_t begin, int64_t end) {
  for_groups(x, begin, end, [&](const NormGroup& p) HWY_ATTR {
    V sum = set(0);
    for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
      const V gated = hn::Mul(load(x.dy, p.in_x + i, n), gate_at(x, p, i, n).value);
      const V weighed = hn::Mul(load(x.w, p.in_w + i, n), load(x.x, p.in_x + i, n));
      sum = hn::MulAdd(gated, weighed, sum);
    });
    x.dots.set(p.in_sums, sum_of_lanes(sum));
  });
}

void gradient_rows(const GatedNormArgs<float>& x, int64_t begin, int64_t end, float* dw) {
  for_groups(x, begin, end, [&](const NormGroup& p) HWY_ATTR {
    const float r = rstd_of(x, p);
    const V rstd = set(r), mean = set(r * x.dots[p.in_sums] / float(x.s.mean_over));
    for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
      const V normed = hn::Mul(load(x.x, p.in_x + i, n), rstd), w = load(x.w, p.in_w + i, n);
      const V dy = load(x.dy, p.in_x + i, n);
      const Activated gate = gate_at(x, p, i, n);
      const V gated = hn::Mul(dy, gate.value);
      store(hn::Mul(rstd, hn::NegMulAdd(normed, mean, hn::Mul(gated, w))), x.dx, p.in_x + i, n);
      if (x.dz) store(hn::Mul(hn::Mul(dy, w), hn::Mul(normed, gate.slope)), x.dz, p.in_dz + i, n);
      add_to(hn::Mul(gated, normed), dw + p.in_w + i, n);
    });
  });
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(square_rows);
HWY_EXPORT(norm_rows);
HWY_EXPORT(dot_rows);
HWY_EXPORT(gradient_rows);

void gated_norm_square_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(square_rows))(args, begin, end);
}
void gated_norm_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(norm_rows))(args, begin, end);
}
void gated_norm_dot_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(dot_rows))(args, begin, end);
}
void gated_norm_gradient_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end,
                                   float* partial) {
  dispatch(HWY_DISPATCH_TABLE(gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
