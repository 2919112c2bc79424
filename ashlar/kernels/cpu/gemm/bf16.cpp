// bf16 products with AVX-512 BF16: 32 multiply-adds an instruction, fp32 sums.
//
// How it works.  vdpbf16ps multiplies 16 pairs of neighbours along K by 16 others and adds both
// products of a pair to an fp32 lane, without rounding between them; it takes denormals as zero.
//
//   panel    two lines for each pair of k:  b[k][0] b[k+1][0]  b[k][1] b[k+1][1] .. b[k+1][31]
//   left     a pair of a row of A, 4 bytes, is broadcast to all lanes; rows may be those of A, or
//            the columns of another panel, whose pairs lie side by side (dy^T in reduce.cpp)
//   tile_of  14 rows x 32 columns: per pair of k two loads of B, 14 broadcasts, 28 products
//
// Packing makes pairs in registers.  pack_panel interleaves two rows of 32.  pack_panel_transposed
// loads 16 rows of 32 and transposes them as 16 x 16 pairs of 4 bytes: neighbours stay together.
// pack_bf16_both reads a 32 x 32 block once and does both.
#include "ashlar/kernels/cpu/gemm/bf16.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ashlar/kernels/cpu/simd/intrinsics.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kWidth = kBf16Width, kLanes = 16, kPairBytes = 4;
// Bytes.  Weights come from memory, and the hardware stops foreseeing at the end of every page.
constexpr int64_t kPanelAhead = 4096;
constexpr int kMaxRows = 14;  // 28 sums, two columns of B and a broadcast fill the 32 registers

[[gnu::target("avx512f"), gnu::always_inline]] inline __mmask32 first32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? __mmask32{0} : (__mmask32{1} << count) - 1;
}

// 32 neighbours as bf16; beyond `count` zeros.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline __m512i load32(
    const std::byte* at, DType dtype, int64_t count) {
  if (count >= 32) {
    if (dtype == DType::kBF16) return _mm512_loadu_si512(at);
    const auto* x = reinterpret_cast<const float*>(at);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + kLanes), _mm512_loadu_ps(x));
  }
  const __mmask32 mask = first32(count);
  if (dtype == DType::kBF16) return _mm512_maskz_loadu_epi16(mask, at);
  const __m512 low = _mm512_maskz_loadu_ps(__mmask16(mask), at);
  const __m512 high = _mm512_maskz_loadu_ps(__mmask16(mask >> 16), at + 64);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Picks the lower 16 of two rows of 32 as pairs, for _mm512_permutex2var_epi16.
[[gnu::target("avx512f"), gnu::always_inline]] inline __m512i interleave_low() {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_load_si512(kLow);
}

// Two rows of 32 as 32 pairs.  Vectors interleave within 16 bytes, for which halves of the rows
// are brought together first: as many shuffles as one that takes any place of both rows costs.
[[gnu::target("avx512f,avx512bw"), gnu::always_inline]] inline void store_pairs(__m512i even,
                                                                                __m512i odd,
                                                                                std::byte* to) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  even = _mm512_permutexvar_epi64(order, even);
  odd = _mm512_permutexvar_epi64(order, odd);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
  _mm512_storeu_si512(to + 64, _mm512_unpackhi_epi16(even, odd));
}

[[gnu::target("avx512f"), gnu::always_inline]] inline void stream(std::byte* to, __m512i line) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
}

// 16 rows of 16 pairs become 16 columns of pairs, by four steps: vectors hold pairs of 2, 4, 8 and
// then 16 rows.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline void transpose(
    __m512i (&rows)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// 8 rows of 32 columns.
template <bool kIsBf16>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline void
pack_four_pairs(const std::byte* rows, int64_t row_bytes, std::byte* panel) {
  constexpr DType kType = kIsBf16 ? DType::kBF16 : DType::kF32;
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2)
    store_pairs(load32(rows + i * row_bytes, kType, kWidth),
                load32(rows + (i + 1) * row_bytes, kType, kWidth), panel + i * kWidth * 2);
}

template <bool kIsBf16>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void pack_panel_of(
    const Source& source, int64_t num_k, int64_t num_cols, int64_t padded_k, std::byte* panel) {
  constexpr DType kType = kIsBf16 ? DType::kBF16 : DType::kF32;
  const int64_t row_bytes = source.stride * (kIsBf16 ? 2 : 4);
  const std::byte* row = source.data;
  int64_t k = 0;
  if (num_cols >= kWidth) {
    for (; k + 8 <= num_k; k += 8, row += 8 * row_bytes, panel += 4 * kWidth * kPairBytes)
      pack_four_pairs<kIsBf16>(row, row_bytes, panel);
  }
  for (; k < padded_k; k += 2, row += 2 * row_bytes, panel += kWidth * kPairBytes)
    // A count of 0 reads nothing: behind the last row there may be no memory.
    store_pairs(load32(row, kType, k < num_k ? num_cols : 0),
                load32(row + row_bytes, kType, k + 1 < num_k ? num_cols : 0), panel);
}

template <bool kIsBf16>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void pack_rows_of(
    const Source& source, int64_t num_rows, int64_t num_k, int64_t padded_k, std::byte* to,
    int64_t row_bytes) {
  constexpr DType kType = kIsBf16 ? DType::kBF16 : DType::kF32;
  constexpr int64_t kSize = kIsBf16 ? 2 : 4;
  for (int64_t r = 0; r < num_rows; ++r, to += row_bytes) {
    const std::byte* from = source.data + r * source.stride * kSize;
    int64_t k = 0;
    for (; k + 32 <= num_k; k += 32)
      _mm512_storeu_si512(to + k * 2, load32(from + k * kSize, kType, 32));
    for (; k < padded_k; k += 32)
      _mm512_mask_storeu_epi16(to + k * 2, first32(padded_k - k),
                               load32(from + k * kSize, kType, num_k - k));
  }
}

template <bool kIsBf16>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void scale_rows_of(const Source& source,
                                                                int64_t num_rows, int64_t num_cols,
                                                                float factor, float* to) {
  const __m512 scale = _mm512_set1_ps(factor);
  const auto low = __mmask16(first32(std::min(num_cols, kLanes))),
             high = __mmask16(first32(num_cols - kLanes));
  for (int64_t r = 0; r < num_rows; ++r, to += kWidth) {
    __m512 x[2];
    if constexpr (kIsBf16) {
      const std::byte* from = source.data + r * source.stride * 2;
      x[0] = _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, from)), 16));
      x[1] = _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, from + 32)), 16));
    } else {
      const std::byte* from = source.data + r * source.stride * 4;
      x[0] = _mm512_maskz_loadu_ps(low, from);
      x[1] = _mm512_maskz_loadu_ps(high, from + 64);
    }
    _mm512_storeu_ps(to, _mm512_mul_ps(x[0], scale));
    _mm512_storeu_ps(to + kLanes, _mm512_mul_ps(x[1], scale));
  }
}

int64_t even(int64_t k) {
  return (k + 1) / 2 * 2;
}

void pack_panel(const Source& source, int64_t num_k, int64_t num_cols, bool, std::byte* panel) {
  pack_bf16_panel(source, num_k, num_cols, even(num_k), panel);
}

template <bool kIsBf16>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void pack_transposed_of(
    const Source& source, int64_t num_k, int64_t num_cols, int64_t padded_k, std::byte* panel) {
  constexpr DType kType = kIsBf16 ? DType::kBF16 : DType::kF32;
  for (int64_t half = 0; half < kWidth; half += kLanes) {
    for (int64_t k = 0; k < padded_k; k += 32) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        rows[i] = load32(source.at(half + i, k).data, kType, half + i < num_cols ? num_k - k : 0);
      transpose(rows);
      std::byte* to = panel + (k / 2 * kWidth + half) * kPairBytes;
      const int64_t num_pairs = (padded_k - k) / 2;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        if (i < num_pairs) _mm512_storeu_si512(to + i * kWidth * kPairBytes, rows[i]);
    }
  }
}

void pack_panel_transposed(const Source& source, int64_t num_k, int64_t num_cols, bool,
                           std::byte* panel) {
  pack_bf16_panel_transposed(source, num_k, num_cols, even(num_k), panel);
}

void pack_rows(const Source& source, int64_t num_rows, int64_t num_k, bool, std::byte* to,
               int64_t row_bytes) {
  pack_bf16_rows(source, num_rows, num_k, even(num_k), to, row_bytes);
}

// Rows are reached from one base per three of them: an address of x86 may add one or two strides at
// no cost.  Lines of c are fetched one row a step, and c is added at the end: fetched all at once
// they would fill the queue of misses and hold up the operands.
enum class Leave { kSet, kAdd, kStream, kBf16 };

template <Leave kLeave, int kRows>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void tile_of(
    int64_t padded_k, const Left& a, const std::byte* panel, std::byte* c, int64_t c_bytes) {
  constexpr int kBases = (kRows + 2) / 3;
  constexpr bool kFetch = kLeave != Leave::kStream, kTwoLines = kLeave != Leave::kBf16;
  __m512 sum[kRows][2];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  const std::byte* base[kBases];
#pragma GCC unroll 5
  for (int i = 0; i < kBases; ++i) base[i] = a.data + 3 * i * a.row_bytes;
  const int64_t row_bytes = a.row_bytes, step_bytes = a.step_bytes;
  const std::byte* ahead = c;
  int fetches = kFetch ? kRows : 0;
  for (int64_t k = 0; k < padded_k; k += 2, panel += kWidth * kPairBytes) {
    const __m512bh b0 = (__m512bh)_mm512_loadu_si512(panel);
    const __m512bh b1 = (__m512bh)_mm512_loadu_si512(panel + 64);
    _mm_prefetch(panel + kPanelAhead, _MM_HINT_T0);
    _mm_prefetch(panel + kPanelAhead + 64, _MM_HINT_T0);
    if (fetches > 0) {
      __builtin_prefetch(ahead, 1);
      if (kTwoLines) __builtin_prefetch(ahead + 64, 1);
      ahead += c_bytes;
      --fetches;
    }
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, base[r / 3] + r % 3 * row_bytes, sizeof pair);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
    }
#pragma GCC unroll 5
    for (int i = 0; i < kBases; ++i) base[i] += step_bytes;
  }
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r, c = next_row(c, c_bytes)) {
    if constexpr (kLeave == Leave::kBf16) {
      _mm512_storeu_si512(c, (__m512i)_mm512_cvtne2ps_pbh(sum[r][1], sum[r][0]));
    } else if constexpr (kLeave == Leave::kStream) {
      stream(c, _mm512_castps_si512(sum[r][0]));
      stream(c + 64, _mm512_castps_si512(sum[r][1]));
    } else {
      if (kLeave == Leave::kAdd) {
        sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(c));
        sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(c + 64));
      }
      _mm512_storeu_ps(c, sum[r][0]);
      _mm512_storeu_ps(c + 64, sum[r][1]);
    }
  }
}

// A tile for each number of rows, so that its sums are registers.
template <Leave kLeave, size_t... kRows>
constexpr auto tiles_of(std::index_sequence<kRows...>) {
  return std::array{&tile_of<kLeave, int(kRows) + 1>...};
}
template <Leave kLeave>
constexpr auto kTiles = tiles_of<kLeave>(std::make_index_sequence<kMaxRows>());

void tile(int64_t rows, int64_t padded_k, const Left& a, const Panel& panel, float* c,
          int64_t c_stride, bool accumulate) {
  const auto& tiles = accumulate ? kTiles<Leave::kAdd> : kTiles<Leave::kSet>;
  tiles[size_t(rows - 1)](padded_k, a, panel.data, reinterpret_cast<std::byte*>(c), c_stride * 4);
}

void tile_to(Store store, int64_t rows, int64_t padded_k, const Left& a, const Panel& panel,
             std::byte* c, int64_t c_bytes) {
  const auto& tiles = store == Store::kBf16 ? kTiles<Leave::kBf16> : kTiles<Leave::kStream>;
  tiles[size_t(rows - 1)](padded_k, a, panel.data, c, c_bytes);
}

void settle() {
  _mm_sfence();
}

}  // namespace

void pack_bf16_panel(const Source& source, int64_t num_k, int64_t num_cols, int64_t padded_k,
                     std::byte* panel) {
  source.dtype == DType::kBF16 ? pack_panel_of<true>(source, num_k, num_cols, padded_k, panel)
                               : pack_panel_of<false>(source, num_k, num_cols, padded_k, panel);
}

// 8 rows at a time, along all columns: the hardware foresees what follows in a row.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void pack_bf16_panels(
    const Source& source, int64_t num_k, int64_t num_cols, int64_t padded_k, std::byte* panels,
    int64_t panel_bytes) {
  constexpr int64_t kRows = 8;
  const int64_t row_bytes = source.stride * 2;
  int64_t k = 0;
  if (source.dtype == DType::kBF16 && num_cols % kWidth == 0)
    for (; k + kRows <= num_k; k += kRows, panels += kRows * kWidth * 2) {
      const std::byte* from = source.data + k * row_bytes;
      std::byte* to = panels;
      for (int64_t col = 0; col < num_cols; col += kWidth, from += kWidth * 2, to += panel_bytes)
        pack_four_pairs<true>(from, row_bytes, to);
    }
  if (k == padded_k) return;
  for (int64_t col = 0; col < num_cols; col += kWidth, panels += panel_bytes)
    pack_bf16_panel(source.at(k, col), num_k - k, std::min(kWidth, num_cols - col), padded_k - k,
                    panels);
}

void pack_bf16_panel_transposed(const Source& source, int64_t num_k, int64_t num_cols,
                                int64_t padded_k, std::byte* panel) {
  source.dtype == DType::kBF16
      ? pack_transposed_of<true>(source, num_k, num_cols, padded_k, panel)
      : pack_transposed_of<false>(source, num_k, num_cols, padded_k, panel);
}

// Both forms take whole lines of 32 x 32 blocks: 32 rows are read once, and every line is written
// once.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void pack_bf16_both(const Source& source,
                                                                            int64_t num_cols,
                                                                            std::byte* transposed,
                                                                            std::byte* plain,
                                                                            int64_t stride) {
  constexpr int64_t kBlock = 32, kAhead = 64;  // columns: two blocks
  const __m512i low = interleave_low();
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t k = 0; k < num_cols; k += kBlock, plain += stride) {
    for (int64_t half = 0; half < kBlock; half += kLanes) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const std::byte* from = source.at(half + i, k).data;
        rows[i] = load32(from, DType::kF32, kBlock);
        _mm_prefetch(from + kAhead * 4, _MM_HINT_T0);
        _mm_prefetch(from + kAhead * 4 + 64, _MM_HINT_T0);
      }
      std::byte* to = plain + half * kBlock * 2;
#pragma GCC unroll 8
      for (int i = 0; i < 16; i += 2, to += kWidth * kPairBytes) {
        stream(to, _mm512_permutex2var_epi16(rows[i], low, rows[i + 1]));
        stream(to + 64, _mm512_permutex2var_epi16(rows[i], high, rows[i + 1]));
      }
      transpose(rows);
      to = transposed + (k / 2 * kWidth + half) * kPairBytes;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) stream(to + i * kWidth * kPairBytes, rows[i]);
    }
  }
  _mm_sfence();
}

void pack_bf16_rows(const Source& source, int64_t num_rows, int64_t num_k, int64_t padded_k,
                    std::byte* to, int64_t row_bytes) {
  source.dtype == DType::kBF16
      ? pack_rows_of<true>(source, num_rows, num_k, padded_k, to, row_bytes)
      : pack_rows_of<false>(source, num_rows, num_k, padded_k, to, row_bytes);
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void transpose_bf16_pairs(
    const std::byte* from, int64_t from_bytes, std::byte* to, int64_t to_bytes) {
  __m512i rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(from + i * from_bytes);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * to_bytes, rows[i]);
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void transpose_bf16_fours(
    const std::byte* from, int64_t from_bytes, std::byte* to, int64_t to_bytes) {
  __m512i rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    rows[i] = _mm512_loadu_si512(from + (i / 4 * 8 + i % 4) * from_bytes);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * to_bytes, rows[i]);
}

// Four rows, 8 apart, meet in the lanes of a vector as they are loaded; 8 x 8 elements are then
// transposed within each lane.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void transpose_bf16_block(
    const Source& source, int64_t num_k, int64_t num_cols, std::byte* to, int64_t to_bytes) {
  constexpr int64_t kSide = 32, kLaneBytes = 16;
  alignas(64) std::byte block[kSide * kSide * 2];
  const std::byte* from = source.data;
  int64_t from_bytes = source.stride * 2;
  if (source.dtype != DType::kBF16 || num_k < kSide || num_cols < kSide) {
    for (int64_t k = 0; k < kSide; ++k)
      _mm512_store_si512(block + k * kSide * 2,
                         load32(source.at(k, 0).data, source.dtype, k < num_k ? num_cols : 0));
    from = block;
    from_bytes = kSide * 2;
  }
  for (int64_t lane = 0; lane < 4; ++lane, from += kLaneBytes) {
    __m512i rows[8], pairs[8], fours[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const std::byte* at = from + i * from_bytes;
      const auto four = [&](int64_t k) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + k * from_bytes));
      };
      rows[i] = _mm512_castsi128_si512(four(0));
      rows[i] = _mm512_inserti32x4(rows[i], four(8), 1);
      rows[i] = _mm512_inserti32x4(rows[i], four(16), 2);
      rows[i] = _mm512_inserti32x4(rows[i], four(24), 3);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm512_unpacklo_epi16(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi16(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      fours[i] = _mm512_unpacklo_epi32(pairs[i], pairs[i + 2]);
      fours[i + 1] = _mm512_unpackhi_epi32(pairs[i], pairs[i + 2]);
      fours[i + 2] = _mm512_unpacklo_epi32(pairs[i + 1], pairs[i + 3]);
      fours[i + 3] = _mm512_unpackhi_epi32(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, to += 2 * to_bytes) {
      _mm512_storeu_si512(to, _mm512_unpacklo_epi64(fours[i], fours[i + 4]));
      _mm512_storeu_si512(to + to_bytes, _mm512_unpackhi_epi64(fours[i], fours[i + 4]));
    }
  }
}

void scale_rows(const Source& source, int64_t num_rows, int64_t num_cols, float factor, float* to) {
  source.dtype == DType::kBF16 ? scale_rows_of<true>(source, num_rows, num_cols, factor, to)
                               : scale_rows_of<false>(source, num_rows, num_cols, factor, to);
}

const Engine& bf16_engine() {
  static constexpr Engine kEngine = {
      .element = DType::kBF16,
      .panel_element = DType::kBF16,
      .round = false,
      .width = kWidth,
      .max_rows = kMaxRows,
      .whole_tiles = false,
      .unit = 2,
      .k_pad = 2,
      .k_block = kWholeDepth,
      .pack_panel = pack_panel,
      .pack_panels = nullptr,
      .pack_panel_transposed = pack_panel_transposed,
      .pack_both = pack_bf16_both,
      .pack_rows = pack_rows,
      .pack_rows_transposed = nullptr,
      .scale_rows = scale_rows,
      .enter = nullptr,
      .leave = nullptr,
      .tile = tile,
      .tile_int8 = nullptr,
      .strip = nullptr,
      .tile_to = tile_to,
      .settle = settle,
      .fetches_c = true,
  };
  return kEngine;
}

}  // namespace ashlar::kernels::cpu::gemm

#endif
