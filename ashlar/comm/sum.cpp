#include "ashlar/comm/sum.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::comm {
namespace {

// Acc holds the partial sums of a block, so that `out` is written after all sources are read.
template <typename T, typename Acc>
void sum(std::span<const std::byte* const> sources, std::byte* out, int64_t count) {
  constexpr int64_t kBlock = 1024;
  Acc partial[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const auto block = [begin](const std::byte* source) {
      return reinterpret_cast<const T*>(source) + begin;
    };
    const T* first = block(sources[0]);
    for (int64_t i = 0; i < length; ++i) partial[i] = Acc(first[i]);
    for (const std::byte* source : sources.subspan(1)) {
      const T* next = block(source);
      for (int64_t i = 0; i < length; ++i) partial[i] = Acc(partial[i] + Acc(next[i]));
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (int64_t i = 0; i < length; ++i) to[i] = T(partial[i]);
  }
}

}  // namespace

bool can_sum(DType dtype) {
  return dtype != DType::kF16 && dtype != DType::kBool;
}

void sum_in_order(DType dtype, std::span<const std::byte* const> sources, std::byte* out,
                  int64_t count) {
  switch (dtype) {
    case DType::kF64:
      return sum<double, double>(sources, out, count);
    case DType::kF32:
      return sum<float, float>(sources, out, count);
    case DType::kBF16:
      return sum<bf16, float>(sources, out, count);
    // Wrapping sums have the same bits for signed and unsigned integers.
    case DType::kI64:
    case DType::kU64:
      return sum<uint64_t, uint64_t>(sources, out, count);
    case DType::kI32:
    case DType::kU32:
      return sum<uint32_t, uint32_t>(sources, out, count);
    case DType::kI16:
    case DType::kU16:
      return sum<uint16_t, uint16_t>(sources, out, count);
    case DType::kI8:
    case DType::kU8:
      return sum<uint8_t, uint8_t>(sources, out, count);
    case DType::kF16:
    case DType::kBool:
      break;
  }
  ASHLAR_ASSERT(false && "no sums of this type");
}

}  // namespace ashlar::comm
