// Functions of vectors beyond exp; included once per target.
#if defined(ASHLAR_KERNELS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASHLAR_KERNELS_CPU_VECTOR_MATH_INL_H_
#undef ASHLAR_KERNELS_CPU_VECTOR_MATH_INL_H_
#else
#define ASHLAR_KERNELS_CPU_VECTOR_MATH_INL_H_
#endif

#include "ashlar/kernels/cpu/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {

// 1 / (1 + e^-x) within a relative error of 4e-7; e^-x is held below overflow.
HWY_INLINE V sigmoid(V x) {
  const V e = exp_approx(hn::Min(set(88.0f), hn::Neg(x)));
  return hn::Div(set(1), hn::Add(set(1), e));
}

// The same within a relative error of 1e-5, for what is rounded to bf16.
HWY_INLINE V sigmoid_rough(V x) {
  const V t = hn::Mul(x, set(-1.44269504f));
  const V d = hn::Add(set(1), exp2_rough(hn::Max(set(-126), hn::Min(set(126), t))));
  const V guess = hn::ApproximateReciprocal(d);  // 11 bits or more, doubled by a step of Newton's
  return hn::Mul(guess, hn::NegMulAdd(d, guess, set(2)));
}

// A function of an element and its derivative there.
struct Activated {
  V value, slope;
};
// x sigma, sigma = sigmoid(x).
HWY_INLINE Activated silu(V x, V sigma) {
  const V value = hn::Mul(x, sigma);
  return {value, hn::MulAdd(value, hn::Sub(set(1), sigma), sigma)};
}
HWY_INLINE Activated silu(V x) {
  return silu(x, sigmoid(x));
}

// log(1 + e^x) within a relative error of 8e-7; x itself above 17, and 0 below -87.3.
// With e = e^-|x| it is max(x, 0) + log(1 + e); log(1 + e) = 2 atanh(s), s = e / (2 + e) <= 1/3, by
// its series up to s^13 (relative error 2e-8).
HWY_INLINE V softplus(V x) {
  const V e = exp_approx(hn::Neg(hn::Abs(x)));
  const V s = hn::Div(e, hn::Add(set(2), e)), square = hn::Mul(s, s);
  V p = hn::MulAdd(set(2.0f / 13), square, set(2.0f / 11));
  p = hn::MulAdd(p, square, set(2.0f / 9));
  p = hn::MulAdd(p, square, set(2.0f / 7));
  p = hn::MulAdd(p, square, set(2.0f / 5));
  p = hn::MulAdd(p, square, set(2.0f / 3));
  p = hn::MulAdd(p, square, set(2));
  return hn::MulAdd(p, s, hn::Max(x, set(0)));
}

// The standard normal distribution Phi, within 1.7e-7, and its density phi, within 2e-7.
// Source  erf: Abramowitz & Stegun 1964, 7.1.26: 1 - erf(y) = t P(t) e^(-y^2),
//         t = 1 / (1 + 0.3275911 y), y >= 0, within 1.5e-7;
//         here y = |x| / sqrt(2) and Phi(-|x|) = (1 - erf(y)) / 2.
struct Normal {
  V distribution, density;
};
HWY_INLINE Normal normal(V x) {
  const V e = exp_approx(hn::Mul(hn::Mul(x, x), set(-0.5f)));
  const V t = hn::Div(set(1), hn::MulAdd(hn::Abs(x), set(0.3275911f * 0.70710678f), set(1)));
  V p = hn::MulAdd(set(0.5f * 1.061405429f), t, set(0.5f * -1.453152027f));
  p = hn::MulAdd(p, t, set(0.5f * 1.421413741f));
  p = hn::MulAdd(p, t, set(0.5f * -0.284496736f));
  p = hn::MulAdd(p, t, set(0.5f * 0.254829592f));
  const V below = hn::Mul(hn::Mul(p, t), e);  // Phi(-|x|)
  const V distribution = hn::IfThenElse(hn::Lt(x, set(0)), below, hn::Sub(set(1), below));
  return {distribution, hn::Mul(e, set(0.39894228f))};
}

}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
