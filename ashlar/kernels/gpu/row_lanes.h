// For kernels in which 32 lanes have a row.
#pragma once

#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {

inline constexpr int kRowThreads = 128, kRowsOfBlock = kRowThreads / kLanes;

ASHLAR_DEVICE int64_t row_of_lanes() {
  return int64_t(block_index()) * kRowsOfBlock + thread_index() / kLanes;
}
inline int64_t blocks_for_rows(int64_t rows) {
  return (rows + kRowsOfBlock - 1) / kRowsOfBlock;
}

// Calls use(i) for those of the numbers 0 to n - 1 that this lane has: every 32nd, in order.
template <typename Use>
ASHLAR_DEVICE void for_lane(int64_t n, Use use) {
  for (int64_t i = thread_index() % kLanes; i < n; i += kLanes) use(i);
}
// Calls use(column, extent) for the packs of a row that this lane has.
template <typename Use>
ASHLAR_DEVICE void for_packs_of_lane(int64_t width, bool by_vectors, Use use) {
  for_lane(packs_of(width), [&](int64_t i) {
    const int64_t column = i * kPack;
    use(column, Extent{width - column, by_vectors});
  });
}

// The lowest of the lanes' numbers, as floats whose bits are in the same order.
ASHLAR_DEVICE int lane_min(int number) {
  constexpr uint32_t kOne = 0x3f800000u;
  const float lowest = lane_reduce(bits_to_float(kOne + uint32_t(number)),
                                   [](float a, float b) { return a < b ? a : b; });
  return int(float_to_bits(lowest) - kOne);
}

}  // namespace ashlar::device
