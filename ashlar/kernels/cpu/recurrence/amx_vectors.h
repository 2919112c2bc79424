// Vectors of 16 fp32 numbers, and rows of bf16 as such: what the passes on AMX machines share.
#pragma once

#include "ashlar/kernels/cpu/simd/intrinsics.h"
#include "ashlar/tensor/dtype.h"

#define ASHLAR_VECTORS gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#define ASHLAR_VECTOR_LAMBDA \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"), always_inline))
#define ASHLAR_INLINE [[ASHLAR_VECTORS, gnu::always_inline]] inline

namespace ashlar::kernels::cpu::amx {

ASHLAR_INLINE __mmask16 first16(int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}
ASHLAR_INLINE __mmask32 first32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? __mmask32{0} : (__mmask32{1} << count) - 1;
}
ASHLAR_INLINE __m512 load(const bf16* at) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
ASHLAR_INLINE __m512 load(const bf16* at, __mmask16 mask) {
  const __m256i x = _mm256_maskz_loadu_epi16(mask, at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
ASHLAR_INLINE __m512 load(const float* at) {
  return _mm512_loadu_ps(at);
}
ASHLAR_INLINE __m512 load(const float* at, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, at);
}
ASHLAR_INLINE __m512i two(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
ASHLAR_INLINE void store(__m512 low, __m512 high, bf16* to) {
  _mm512_storeu_si512(to, two(low, high));
}

// For _mm512_permutexvar_epi16: the halves of a vector as pairs.
ASHLAR_INLINE __m512i halves_as_pairs() {
  alignas(64) static constexpr uint16_t kPairOrder[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_load_si512(kPairOrder);
}
// For _mm512_permutex2var_epi16: the lower 16 of two rows of 32 as pairs.
ASHLAR_INLINE __m512i pairs_low() {
  const __m512i order = halves_as_pairs();  // 16.. of the second row begin at 32
  return _mm512_add_epi16(order, _mm512_and_si512(order, _mm512_set1_epi16(16)));
}

}  // namespace ashlar::kernels::cpu::amx
