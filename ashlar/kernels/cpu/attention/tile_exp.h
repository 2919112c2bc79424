// 2^t for 32 scores at a time, as bf16, in 16-bit integers.
//
// The bits of the bf16 2^t are the integer 128 (t + 127) where t is whole, and between two such t
// less than that line by at most 11.  So t becomes an integer in units of 1/256; a table of 64
// entries, which its fraction selects, has how much the line is too high; and half of the sum,
// rounded, is the result: within 0.7 % of 2^t, 0.2 % in the mean square, where rounding 2^t itself
// leaves 0.4 % and 0.17 %.  The units' sum is 32 too low and the table 32 too high, so that its
// entries are positive.
//
// While tiles are in flight one of the two vector ports neither multiplies, converts, shifts nor
// averages.  Here each port has its three instructions, and three that either one takes: floats
// become integers by adding a number that leaves their last bit at 1, and a shuffle shifts.
#pragma once

#if defined(__x86_64__)

#include <array>
#include <bit>

#include "ashlar/kernels/cpu/attention/tiles.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

namespace ashlar::kernels::cpu {

inline constexpr float kLog2OfE = 1.44269504f;

// `exponentials` takes t times kExpUnits, plus kExpOffset.
inline constexpr float kExpUnits = 256;
inline constexpr float kExpMagic = 12582912.0f, kExpOffset = kExpMagic + 127 * 256 - 32;

// The bound of t times kExpUnits, in size, lest the addition lose it.  Within it, the result is a
// denormal below t = -127, which tiles take as 0; from t = 128 on it is infinite, not a number, or
// has its sign bit set.
inline constexpr float kExpLimit = 0x1p23f;

alignas(64) inline constexpr std::array<uint8_t, 64> kExpTable = {
    22, 21, 20, 20, 19, 18, 17, 16, 16, 15, 14, 14, 13, 13, 12, 12, 11, 11, 11, 10, 10, 10,
    10, 10, 10, 9,  9,  10, 10, 10, 10, 10, 10, 11, 11, 12, 12, 12, 13, 14, 14, 15, 16, 17,
    17, 18, 19, 20, 21, 23, 24, 25, 26, 28, 29, 31, 31, 30, 29, 28, 26, 25, 24, 23};
// Where in 8 bytes the upper six bits of the lower byte of each word begin.
inline constexpr int64_t kExpIndex = 0x3a32'2a22'1a12'0a02;

struct ExpConstants {
  __m512i magic, table, index;
};
ASHLAR_TILES_INLINE ExpConstants exp_constants() {
  return {_mm512_set1_epi32(std::bit_cast<int32_t>(kExpMagic)), _mm512_load_si512(kExpTable.data()),
          _mm512_set1_epi64(kExpIndex)};
}

// Word 8 i + j of the result is 2^t of lane 4 i + j of `a` if j < 4, else of lane 4 i + j - 4 of
// `b`.
ASHLAR_TILES_INLINE __m512i exponentials(__m512 a, __m512 b, const ExpConstants& c) {
  const __m512i u = _mm512_packus_epi32(_mm512_sub_epi32(_mm512_castps_si512(a), c.magic),
                                        _mm512_sub_epi32(_mm512_castps_si512(b), c.magic));
  const __m512i x = _mm512_maskz_permutexvar_epi8(
      0x5555555555555555, _mm512_multishift_epi64_epi8(c.index, u), c.table);
  return _mm512_avg_epu16(u, x);
}

}  // namespace ashlar::kernels::cpu

#endif
