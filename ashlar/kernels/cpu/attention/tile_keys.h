// Keys and values as the right operands of attention on tiles, packed once a call.
#pragma once

#include <array>
#include <cstring>

#include "ashlar/kernels/cpu/attention/tiles.h"
#include "ashlar/kernels/cpu/gemm/bf16.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

namespace ashlar::kernels::cpu {

// The transpose of `rows` (at most 32) rows of `depth` elements as a panel, whose columns are the
// even rows, then the odd ones.
inline void pack_even_odd(const gemm::Engine& e, const gemm::Source& source, int64_t rows,
                          int64_t depth, std::byte* panel) {
  if (rows == kStrip && depth % kStrip == 0) {
    const int64_t row_bytes = source.stride * 2;
    for (int64_t k = 0; k < depth; k += kStrip, panel += kPanelBytes)
      for (int64_t odd = 0; odd < 2; ++odd)
        gemm::transpose_bf16_pairs(source.at(odd, k).data, 2 * row_bytes, panel + odd * 64,
                                   kPairRowBytes);
    return;
  }
  gemm::Source even = source, odd = source.at(rows > 1, 0);
  even.stride *= 2;
  odd.stride *= 2;
  alignas(64) std::byte columns[kStrip * kMaxHeadDim * 2];
  e.pack_panel_transposed(even, depth, (rows + 1) / 2, false, panel);
  e.pack_panel_transposed(odd, depth, rows / 2, false, columns);
  for (int64_t line = 0; line < round_up(depth, kStrip) / 2; ++line)
    std::memcpy(panel + line * kPairRowBytes + 64, columns + line * kPairRowBytes, 64);
}

// The same with other columns: rows 0 to 3, 8 to 11, 16 to 19 and 24 to 27, then the others.
inline void pack_fours(const gemm::Engine& e, const gemm::Source& source, int64_t rows,
                       int64_t depth, std::byte* panel) {
  if (rows == kStrip && depth % kStrip == 0) {
    for (int64_t k = 0; k < depth; k += kStrip, panel += kPanelBytes)
      for (int64_t half = 0; half < 2; ++half)
        gemm::transpose_bf16_fours(source.at(4 * half, k).data, source.stride * 2,
                                   panel + half * 64, kPairRowBytes);
    return;
  }
  alignas(64) std::byte ordered[kStrip * kMaxHeadDim * 2] = {};
  for (int64_t c = 0; c < kStrip; ++c) {
    const int64_t row = c % kHalfStrip / 4 * 8 + c % 4 + c / kHalfStrip * 4;
    if (row < rows) std::memcpy(ordered + c * depth * 2, source.at(row, 0).data, size_t(depth * 2));
  }
  e.pack_panel_transposed({ordered, DType::kBF16, depth}, depth, kStrip, false, panel);
}

// The size of the largest of some bf16, as its bits, which grow with it; NaN is the largest.
ASHLAR_TILES inline uint16_t largest_size(const gemm::Source& source, int64_t rows,
                                          int64_t columns) {
  const __m512i size = _mm512_set1_epi16(0x7fff);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t c = 0; c < columns; c += kStrip) {
    const __mmask32 mask = first_bits(int32_t(std::min(columns - c, kStrip)));
    const std::byte* at = source.data + c * 2;
    for (int64_t r = 0; r < rows; ++r, at += source.stride * 2)
      largest =
          _mm512_max_epu16(largest, _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, at), size));
  }
  const __m256i half =
      _mm256_max_epu16(_mm512_castsi512_si256(largest), _mm512_extracti64x4_epi64(largest, 1));
  const __m128i quarter =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The instruction finds the least.
  return uint16_t(~_mm_cvtsi128_si32(_mm_minpos_epu16(~quarter)));
}

// At most 32 rows of `columns` elements as panels of pairs of rows.
inline void pack_pairs(const gemm::Engine& e, const gemm::Source& source, int64_t rows,
                       int64_t columns, std::byte* to) {
  for (int64_t c = 0; c < columns; c += kStrip)
    e.pack_panel(source.at(0, c), rows, std::min(kStrip, columns - c), false, to + c * kStrip * 2);
}

// Per kv head and 32 keys: K^T [D, 32], its columns as pack_fours orders them and as
// `exponentials` puts them back, and V as pairs of keys.  And the largest element of K.
struct TileKeys {
  int64_t depth, width, panels;  // D and V padded
  std::byte* data = nullptr;
  uint16_t* largest = nullptr;  // [K, panels], as largest_size has it

  explicit TileKeys(const AttentionArgs& call)
      : depth(round_up(call.shape.D, kStrip)),
        width(round_up(call.shape.V, kStrip)),
        panels(ceil_div(num_key_rows(call), kStrip)) {
    const int64_t bytes = call.shape.K * panels * kStrip * (depth + width) * 2;
    data = call.ctx.workspace->take(DType::kU8, {bytes}).data;
    const Tensor sizes = call.ctx.workspace->take(DType::kU8, {call.shape.K * panels * 2});
    if (!call.ctx.meta()) largest = reinterpret_cast<uint16_t*>(sizes.data);
  }
  std::byte* key(int64_t j, int64_t panel) const {
    return data + (j * panels + panel) * kStrip * (depth + width) * 2;
  }
  std::byte* value(int64_t j, int64_t panel) const { return key(j, panel) + kStrip * depth * 2; }

  void fill(const gemm::Engine& e, const AttentionArgs& call) const {
    const int64_t K = call.shape.K, D = call.shape.D, V = call.shape.V;
    call.ctx.threads->run(panels, [&](int64_t panel, int) {
      const int64_t row = panel * kStrip, rows = std::min(kStrip, num_key_rows(call) - row);
      for (int64_t j = 0; j < K; ++j) {
        const gemm::Source k = source_of(call.k, row, j * D, K * D);
        pack_fours(e, k, rows, D, key(j, panel));
        largest[j * panels + panel] = largest_size(k, rows, D);
        pack_pairs(e, source_of(call.v, row, j * V, K * V), rows, V, value(j, panel));
      }
    });
  }
};

}  // namespace ashlar::kernels::cpu
