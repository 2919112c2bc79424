#include "ashlar/kernels/cpu/gemm/int8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/gemm/int8_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::gemm::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Integers = hn::Rebind<int32_t, Floats>;
constexpr int64_t kStep = HWY_MAX_BYTES / 4;
// Bytes: a part of a panel, so that the next part arrives while tiles read this one.
constexpr int64_t kAhead = 8192;

// An integer of 8 bits has at most 7 significant ones: the upper half of its float is its bf16, and
// the lower half is 0.  Pairs of bytes become pairs of bf16.
void expand_bf16(const int8_t* from, int64_t count, std::byte* to) {
  const Integers di;
  const hn::Rebind<int16_t, Floats> pairs;
  auto* out = reinterpret_cast<int32_t*>(to);
  for (int64_t i = 0; i < count / 2; i += kStep) {
    __builtin_prefetch(from + 2 * i + kAhead);
    const auto both =
        hn::PromoteTo(di, hn::LoadU(pairs, reinterpret_cast<const int16_t*>(from) + i));
    const auto even =
        hn::BitCast(di, hn::ConvertTo(Floats(), hn::ShiftRight<24>(hn::ShiftLeft<24>(both))));
    const auto odd = hn::BitCast(di, hn::ConvertTo(Floats(), hn::ShiftRight<8>(both)));
    const auto lower =
        hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(hn::Rebind<uint32_t, Floats>(), even)));
    hn::StoreU(hn::Or(lower, odd), di, out + i);
  }
}

void expand_f32(const int8_t* from, int64_t count, std::byte* to) {
  auto* out = reinterpret_cast<float*>(to);
  for (int64_t i = 0; i < count; i += kStep) {
    __builtin_prefetch(from + i + kAhead);
    const auto bytes = hn::LoadU(hn::Rebind<int8_t, Floats>(), from + i);
    hn::StoreU(hn::ConvertTo(Floats(), hn::PromoteTo(Integers(), bytes)), Floats(), out + i);
  }
}

}  // namespace

// count: a multiple of a panel's width, which is one of two vectors or more.
void expand(const int8_t* from, int64_t count, DType element, std::byte* to) {
  element == DType::kBF16 ? expand_bf16(from, count, to) : expand_f32(from, count, to);
}

}  // namespace ashlar::kernels::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu::gemm {
HWY_EXPORT(expand);
void expand_int8(const int8_t* from, int64_t count, DType element, std::byte* to) {
  dispatch(HWY_DISPATCH_TABLE(expand))(from, count, element, to);
}
}  // namespace ashlar::kernels::cpu::gemm
#endif
