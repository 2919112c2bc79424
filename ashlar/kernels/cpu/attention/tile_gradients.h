// The vector work of attention's backward on tiles: P and dS of a unit of 32 keys and 32 queries.
#pragma once

#if defined(__x86_64__)

#include <array>

#include "ashlar/kernels/cpu/attention/tile_exp.h"
#include "ashlar/kernels/cpu/gemm/bf16.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kKeyUnits = 8, kQueryUnits = 4;  // of a block
inline constexpr int64_t kKeys = kKeyUnits * kStrip, kQueries = kQueryUnits * kStrip;
inline constexpr int64_t kUnitBytes = kStrip * 2;  // of a row of a unit

// 32 queries of a head; columns are the even queries, then the odd ones.
struct Columns {
  alignas(64) std::array<int32_t, kStrip> begin, end;   // rows of k that each sees
  alignas(64) std::array<float, kStrip> log_sum, mean;  // log2 of the sum; scale times delta
};

// Scores and dP of a unit, in flight.
struct GradientUnit {
  alignas(64) std::array<float, kStrip * kStrip> s, dp;
};

// Two vectors of floats as bf16, cut, in alternation.
ASHLAR_TILES [[gnu::always_inline]] inline __m512i cut_and_join(__m512i even, __m512i odd) {
  const __m512i halves = _mm512_set4_epi32(0x80800f0e, 0x80800b0a, 0x80800706, 0x80800302);
  return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, halves);
}

// P and dS of 16 queries and a key, as floats whose upper halves are those values rounded.
struct Gradient {
  __m512i p, ds;
};

template <bool kMasked>
ASHLAR_TILES [[gnu::always_inline]] inline Gradient gradient_of(const float* s, const float* dp,
                                                                const Columns& columns, int64_t c,
                                                                int32_t key, __m512 factor,
                                                                __m512 scale) {
  const __m512 t =
      _mm512_fmsub_ps(_mm512_load_ps(s + c), factor, _mm512_load_ps(&columns.log_sum[size_t(c)]));
  const __m512 r = _mm512_reduce_ps(t, 0x08 | 1);  // t - floor(t), however large t is
  __m512 e = _mm512_fmadd_ps(_mm512_set1_ps(0.07802449f), r, _mm512_set1_ps(0.22606727f));
  e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(0.69583346f));
  e = _mm512_scalef_ps(_mm512_fmadd_ps(e, r, _mm512_set1_ps(0.99992523f)), t);
  const __m512 slope =
      _mm512_fmsub_ps(_mm512_load_ps(dp + c), scale, _mm512_load_ps(&columns.mean[size_t(c)]));
  const __m512i half = _mm512_set1_epi32(0x8000);  // rounds half away from zero when cut
  __m512i p = _mm512_add_epi32(_mm512_castps_si512(e), half);
  __m512i ds = _mm512_add_epi32(_mm512_castps_si512(_mm512_mul_ps(e, slope)), half);
  if (kMasked) {
    const __m512i keys = _mm512_set1_epi32(key);
    const __mmask16 begun =
        _mm512_cmple_epi32_mask(_mm512_load_si512(&columns.begin[size_t(c)]), keys);
    const __mmask16 seen =
        _mm512_mask_cmpgt_epi32_mask(begun, _mm512_load_si512(&columns.end[size_t(c)]), keys);
    p = _mm512_maskz_mov_epi32(seen, p);
    ds = _mm512_maskz_mov_epi32(seen, ds);
  }
  return {p, ds};
}

// The vector work of a unit, two keys at a time.
struct VectorWork {
  const GradientUnit* unit = nullptr;
  const Columns* columns;
  std::byte *p, *ds, *pairs;
  float scale;
  int32_t key;
  bool masked;
  int64_t row = kStrip;
};

template <bool kMasked>
ASHLAR_TILES [[gnu::noinline]] void gradient_rows(const GradientUnit* unit, const Columns* columns,
                                                  std::byte* p, std::byte* ds_keys,
                                                  std::byte* pairs, float scale, int32_t first_key,
                                                  int64_t begin, int64_t end) {
  const __m512 factor = _mm512_set1_ps(scale * kLog2OfE), scales = _mm512_set1_ps(scale);
  for (int64_t r = begin; r < end; r += 2) {
    __m512i ds[2][2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int64_t at = (r + i) * kStrip;
      const float *s = &unit->s[size_t(at)], *dp = &unit->dp[size_t(at)];
      const auto key = int32_t(first_key + r + i);
      const Gradient even = gradient_of<kMasked>(s, dp, *columns, 0, key, factor, scales);
      const Gradient odd = gradient_of<kMasked>(s, dp, *columns, kHalfStrip, key, factor, scales);
      ds[i][0] = even.ds;
      ds[i][1] = odd.ds;
      _mm512_store_si512(p + (r + i) * kUnitBytes, cut_and_join(even.p, odd.p));
      _mm512_store_si512(ds_keys + (r + i) * kUnitBytes, cut_and_join(even.ds, odd.ds));
    }
    std::byte* to = pairs + r / 2 * kPairRowBytes;
    _mm512_store_si512(to, cut_and_join(ds[0][0], ds[1][0]));
    _mm512_store_si512(to + 64, cut_and_join(ds[0][1], ds[1][1]));
  }
}

// Does up to `rows` rows of the work.
ASHLAR_TILES_INLINE void advance(VectorWork& w, int64_t rows) {
  if (w.row == kStrip) return;
  const int64_t begin = w.row, end = std::min(begin + rows, kStrip);
  w.row = end;
  if (w.masked)
    gradient_rows<true>(w.unit, w.columns, w.p, w.ds, w.pairs, w.scale, w.key, begin, end);
  else
    gradient_rows<false>(w.unit, w.columns, w.p, w.ds, w.pairs, w.scale, w.key, begin, end);
}

}  // namespace ashlar::kernels::cpu

#endif
