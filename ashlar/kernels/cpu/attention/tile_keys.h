// Keys and values as the right operands of attention on tiles, packed once a call.
#pragma once

#include <cstring>

#include "ashlar/kernels/cpu/attention/tiles.h"
#include "ashlar/kernels/cpu/gemm/bf16.h"

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

// At most 32 rows of `columns` elements as panels of pairs of rows.
inline void pack_pairs(const gemm::Engine& e, const gemm::Source& source, int64_t rows,
                       int64_t columns, std::byte* to) {
  for (int64_t c = 0; c < columns; c += kStrip)
    e.pack_panel(source.at(0, c), rows, std::min(kStrip, columns - c), false, to + c * kStrip * 2);
}

// Per kv head and 32 keys: K^T [D, 32], its columns the even keys, then the odd ones, and V as
// pairs of keys.  Scores of neighbours thus stand in the same lane of two vectors, of which one
// shuffle makes the pairs of P.
struct TileKeys {
  int64_t depth, width, panels;  // D and V padded
  std::byte* data = nullptr;

  explicit TileKeys(const AttentionArgs& call)
      : depth(round_up(call.shape.D, kStrip)),
        width(round_up(call.shape.V, kStrip)),
        panels(ceil_div(num_key_rows(call), kStrip)) {
    const int64_t bytes = call.shape.K * panels * kStrip * (depth + width) * 2;
    data = call.ctx.workspace->take(DType::kU8, {bytes}).data;
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
        pack_even_odd(e, source_of(call.k, row, j * D, K * D), rows, D, key(j, panel));
        pack_pairs(e, source_of(call.v, row, j * V, K * V), rows, V, value(j, panel));
      }
    });
  }
};

}  // namespace ashlar::kernels::cpu
