// fp32 vectors of softmax and its neighbours on Highway: elements as float or bf16, and exp.
// Included once per target.
#if defined(ASHLAR_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASHLAR_KERNELS_CPU_VECTOR_INL_H_
#undef ASHLAR_KERNELS_CPU_VECTOR_INL_H_
#else
#define ASHLAR_KERNELS_CPU_VECTOR_INL_H_
#endif

#include "ashlar/tensor/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

HWY_INLINE int64_t lanes() {
  return int64_t(hn::Lanes(D()));
}

HWY_INLINE V load(const float* x) {
  return hn::LoadU(D(), x);
}
HWY_INLINE V load(const bf16* x) {
  const hn::Rebind<uint16_t, D> du16;
  const hn::Rebind<uint32_t, D> du32;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(x));
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
}
HWY_INLINE void store(V x, float* to) {
  hn::StoreU(x, D(), to);
}
#if HWY_TARGET == HWY_AVX3_DL  // here isa() has AVX-512 BF16, which Highway 1.0 does not know
// Rounds to the nearest bf16, ties to even; denormals become zero.
HWY_INLINE __m256i to_bf16(V x) {
  __m256i half;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(x.raw));
  return half;
}
HWY_INLINE void store(V x, bf16* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(x));
}
#else
// Stores x rounded to the nearest bf16, ties to even; a NaN keeps its upper half, made quiet.
HWY_INLINE void store(V x, bf16* to) {
  const hn::Rebind<uint32_t, D> du;
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  const auto half = hn::BitCast(di, hn::ShiftRight<16>(kept));
  hn::StoreU(hn::DemoteTo(du16, half), du16, reinterpret_cast<uint16_t*>(to));
}
#endif

// e^x for x <= 88 within a relative error of 2.5e-7; exactly 1 at 0, 0 below -87.3, NaN for NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r - 1 - r by a minimax polynomial r^2 p(r) of degree 5
// (relative error 1.1e-7 before rounding).
HWY_INLINE V exp_approx(V x) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -87.3f);  // what lies below is computed, and dropped in the end
  const V shifter =
      hn::Set(d, 12582912.0f);  // 1.5 * 2^23: the sum is rounded to an integer, its low bits are n
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const V n = hn::Sub(shifted, shifter);
  V r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e400p-1f), x);  // the high bits of ln 2: exact
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20f), r);
  V p = hn::MulAdd(hn::Set(d, 0.0083125024f), r, hn::Set(d, 0.0418903357f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.1666711539f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.4999923028f));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  const auto exponent =
      hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23));
  const V power = hn::BitCast(d, exponent);
  const V result = hn::MulAdd(p, power, power);
  return hn::IfThenZeroElse(hn::Lt(x, lowest), result);
}

// 2^t for |t| <= 126 within a relative error of 3e-6, for what is rounded to bf16; else meaningless
// (NaN for NaN).  t = n + r, |r| <= 1/2; 2^r by a minimax polynomial of degree 4.
HWY_INLINE V exp2_rough(V t) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V shifter = hn::Set(d, 12582912.0f);  // as above
  const V shifted = hn::Add(t, shifter);
  const V r = hn::Sub(t, hn::Sub(shifted, shifter));
  V p = hn::MulAdd(hn::Set(d, 0.0095701019f), r, hn::Set(d, 0.0559178603f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.2402474483f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.6931218147f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.9999992614f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
