// The products of Newton-Schulz on tiles (AMX): blocks of 32 x 32 sums, and the forms in which a
// product reads a block of 32 x 32 elements of bf16.
//
// A block is 2 KiB, two tiles of 16 lines:
//
//   rows    tile h, line i:  row 16 h + i, its 32 elements                  a left operand
//   pairs   tile h, line i:  rows 2 i and 2 i + 1, element by element in    a right operand
//                            pairs, for 16 columns
//
// Seen as 16 x 16 pairs of 4 bytes, a tile of `rows` transposed is a tile of `pairs` of the
// transposed block, and the other way round (turn).  Matrices are kept as `rows`; panels of `pairs`
// are made of them by turning blocks, or by interleaving lines.
//
// Interleaving permutes columns: vpunpck works on 16-byte lanes, so that tile h gets columns
// 8 l + 4 h + q (l, q < 4).  Seen as groups of four columns this rotates the three bits of a
// group's number.
//
// How it works.  While tiles multiply, vector units do other work: a product runs 8 slices of it,
// one after each of its first steps over K.
#pragma once

#if defined(__x86_64__)

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ashlar/kernels/cpu/gemm/amx_tiles.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

namespace ashlar::kernels::cpu::newton_schulz {

inline constexpr int64_t kSide = 32, kTileBytes = 1024, kBlockBytes = 2 * kTileBytes, kSlices = 8;

// 32 x 32 sums in four tiles of 16 x 16: upper left, upper right, lower left, lower right.
struct Sums {
  alignas(64) float at[kSide * kSide];
  const float* row(int64_t r) const { return at + r / 16 * 512 + r % 16 * 16; }  // right: + 256
  float* row(int64_t r) { return at + r / 16 * 512 + r % 16 * 16; }
};

ASHLAR_TILES_INLINE __m128i quad(const std::byte* at) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(at));
}

// Lines 4 q to 4 q + 3 of the transpose of a tile, seen as 16 x 16 elements of 4 bytes.
ASHLAR_TILES_INLINE void turn_quarter(const void* from, int64_t q, __m512i (&out)[4]) {
  __m512i x[4];
  for (int64_t a = 0; a < 4; ++a) {
    const std::byte* line = static_cast<const std::byte*>(from) + a * 64 + q * 16;
    x[a] = _mm512_castsi128_si512(quad(line));
    x[a] = _mm512_mask_broadcast_i32x4(x[a], 0x00f0, quad(line + 4 * 64));
    x[a] = _mm512_mask_broadcast_i32x4(x[a], 0x0f00, quad(line + 8 * 64));
    x[a] = _mm512_mask_broadcast_i32x4(x[a], 0xf000, quad(line + 12 * 64));
  }
  const __m512i low01 = _mm512_unpacklo_epi32(x[0], x[1]),
                low23 = _mm512_unpacklo_epi32(x[2], x[3]),
                high01 = _mm512_unpackhi_epi32(x[0], x[1]),
                high23 = _mm512_unpackhi_epi32(x[2], x[3]);
  out[0] = _mm512_unpacklo_epi64(low01, low23), out[1] = _mm512_unpackhi_epi64(low01, low23);
  out[2] = _mm512_unpacklo_epi64(high01, high23), out[3] = _mm512_unpackhi_epi64(high01, high23);
}

// Slice s of turning a block of `rows` to `pairs` of the transposed block; from 8 on, of the blocks
// that follow.
ASHLAR_TILES_INLINE void turn(const std::byte* rows, std::byte* pairs, int64_t s) {
  __m512i out[4];
  turn_quarter(rows + s / 4 * kTileBytes, s % 4, out);
  for (int64_t i = 0; i < 4; ++i) _mm512_store_si512(pairs + s * 256 + i * 64, out[i]);
}

// Slice s of turning interleaved `pairs` to `rows` of the transposed block.
ASHLAR_TILES_INLINE void turn_back(const std::byte* pairs, std::byte* rows, int64_t s) {
  __m512i out[4];
  const int64_t half = s / 4, lane = s % 4;
  turn_quarter(pairs + half * kTileBytes, lane, out);
  for (int64_t i = 0; i < 4; ++i) _mm512_store_si512(rows + (8 * lane + 4 * half + i) * 64, out[i]);
}

ASHLAR_TILES_INLINE void store_pairs(__m512i row, __m512i next, std::byte* pairs) {
  _mm512_store_si512(pairs, _mm512_unpacklo_epi16(row, next));
  _mm512_store_si512(pairs + kTileBytes, _mm512_unpackhi_epi16(row, next));
}

// Slice s of interleaving the lines of a block of `rows`.
ASHLAR_TILES_INLINE void interleave(const std::byte* rows, std::byte* pairs, int64_t s) {
  for (int64_t i = 2 * s; i < 2 * s + 2; ++i)
    store_pairs(_mm512_load_si512(rows + 2 * i * 64), _mm512_load_si512(rows + 2 * i * 64 + 64),
                pairs + i * 64);
}

// The 32 elements of row r, rounded.
template <typename Values>
ASHLAR_TILES_INLINE __m512i rounded(const Values& values, int64_t r) {
  return (__m512i)_mm512_cvtne2ps_pbh(values(r, 1), values(r, 0));
}

// Slice s of the `rows` of values(r, half), 16 fp32 each.
template <typename Values>
ASHLAR_TILES_INLINE void convert(const Values& values, std::byte* rows, int64_t s) {
  for (int64_t r = 4 * s; r < 4 * s + 4; ++r) _mm512_store_si512(rows + r * 64, rounded(values, r));
}

// Slice s of the `rows` of values(r, half) and of their interleaved pairs.
template <typename Values>
ASHLAR_TILES_INLINE void convert(const Values& values, std::byte* rows, std::byte* pairs,
                                 int64_t s) {
  for (int64_t i = 2 * s; i < 2 * s + 2; ++i) {
    const __m512i row = rounded(values, 2 * i), next = rounded(values, 2 * i + 1);
    _mm512_store_si512(rows + 2 * i * 64, row);
    _mm512_store_si512(rows + 2 * i * 64 + 64, next);
    store_pairs(row, next, pairs + i * 64);
  }
}

// Shapes the tiles of this thread for this scope.
class TileScope {
 public:
  TileScope() {
    amx::TileConfig config;
    for (int i = 0; i < 8; ++i) config.rows[i] = 16, config.row_bytes[i] = 64;
    amx::load_config(config);
  }
  ~TileScope() { amx::release(); }
};

// A step of 32 k: two tiles of each operand, four multiplications into tiles 0 to 3.
ASHLAR_TILES_INLINE void multiply_step(const std::byte* left, const std::byte* right) {
  amx::load_passing<4>(left, 64);
  amx::load<6>(right, 64);
  amx::load<7>(right + kTileBytes, 64);
  amx::load_passing<5>(left + kTileBytes, 64);
  amx::multiply_add<0, 4, 6>();
  amx::multiply_add<1, 4, 7>();
  amx::multiply_add<2, 5, 6>();
  amx::multiply_add<3, 5, 7>();
}

// to = left right over `steps` blocks of each, which follow each other, plus `start` unless that is
// null; `to` and `start` as Sums.  work.slice(s) runs meanwhile for every s < kSlices.
template <typename Work>
ASHLAR_TILES_INLINE void multiply_block(const std::byte* left, const std::byte* right,
                                        int64_t steps, const float* start, float* to,
                                        const Work& work) {
  if (start) {
    amx::load<0>(start, 64), amx::load<1>(start + 256, 64);
    amx::load<2>(start + 512, 64), amx::load<3>(start + 768, 64);
  } else {
    amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
  }
  const int64_t shared = std::min(steps, kSlices);
  for (int64_t k = 0; k < shared; ++k) {
    multiply_step(left + k * kBlockBytes, right + k * kBlockBytes);
    work.slice(k);
  }
  for (int64_t k = shared; k < steps; ++k)
    multiply_step(left + k * kBlockBytes, right + k * kBlockBytes);
  for (int64_t k = shared; k < kSlices; ++k) work.slice(k);
  amx::store<0>(to, 64), amx::store<1>(to + 256, 64);
  amx::store<2>(to + 512, 64), amx::store<3>(to + 768, 64);
}

}  // namespace ashlar::kernels::cpu::newton_schulz

#endif
