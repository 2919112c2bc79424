// The rotation of RoPE along a head, for kernels that read and write heads in ways of their own.
// Included once per target.
#if defined(ASHLAR_KERNELS_CPU_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASHLAR_KERNELS_CPU_ROPE_INL_H_
#undef ASHLAR_KERNELS_CPU_ROPE_INL_H_
#else
#define ASHLAR_KERNELS_CPU_ROPE_INL_H_
#endif

#include "ashlar/kernels/cpu/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {

// Turns the head of D elements whose vectors read(i, n) returns by the angles of token t; back: by
// their opposites, as gradients are turned.  Elements from x.s.rotary_dim on stay as they are.
// write(v, i, n) takes vector i of the result.  The table may lack where nothing is rotated.
template <typename Args, typename Read, typename Write>
HWY_INLINE void rotate(const Args& x, int64_t t, bool back, Read read, Write write) {
  const int64_t rho = x.s.rotary_dim, half = rho / 2;
  const float* angles =
      reinterpret_cast<const float*>(x.rope.data()) + x.sequence->position_T()[size_t(t)] * rho;
  const V direction = set(back ? -1.0f : 1.0f);
  for_lanes(half, [&](int64_t i, auto n) HWY_ATTR {
    const V low = read(i, n), high = read(i + half, n);
    const V c = load(angles + i, n), s = hn::Mul(direction, load(angles + half + i, n));
    write(hn::NegMulAdd(high, s, hn::Mul(low, c)), i, n);
    write(hn::MulAdd(low, s, hn::Mul(high, c)), half + i, n);
  });
  for_lanes(x.s.D - rho, [&](int64_t i, auto n) HWY_ATTR { write(read(rho + i, n), rho + i, n); });
}

}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // toggled include guard
