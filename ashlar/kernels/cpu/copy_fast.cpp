#include "ashlar/kernels/cpu/copy_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/copy_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

// On every target by integers: the instruction of AVX-512 BF16 makes denormals zero.
void round_elements(const float* from, bf16* to, int64_t count) {
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint16_t, D> du16;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto half = hn::ShiftRight<16>(rounded_bits(load(from + i)));
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, half)), du16,
               reinterpret_cast<uint16_t*>(to + i));
  }
  for (; i < count; ++i) to[i] = bf16(from[i]);
}

void widen_elements(const bf16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  for (; i < count; ++i) to[i] = float(from[i]);
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(round_elements);
HWY_EXPORT(widen_elements);

void round_fast(const float* from, bf16* to, int64_t count) {
  dispatch(HWY_DISPATCH_TABLE(round_elements))(from, to, count);
}
void widen_fast(const bf16* from, float* to, int64_t count) {
  dispatch(HWY_DISPATCH_TABLE(widen_elements))(from, to, count);
}

}  // namespace ashlar::kernels::cpu
#endif
