// How it works.  Everything is in rows of whole vectors, so that only reading a matrix of the
// caller has a tail.  Decays between pairs of tokens are not stored: from row i - 1 to row i, the
// products for all tokens before are multiplied by a_i, in registers, and products below 1e-30 drop
// to 0, since slow denormals would follow.
//
// invert_blocks solves N = L + L N row by row, which has no division: row i of N is row i of L plus
// rows j < i of N, each times l[i][j].  Blocks do not depend on each other and run side by side.
#include "ashlar/kernels/cpu/recurrence/amx_passes.h"

#if defined(__x86_64__)

#include <algorithm>

#include "ashlar/kernels/cpu/gemm/bf16.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

#define ASHLAR_VECTORS gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#define ASHLAR_INLINE [[ASHLAR_VECTORS, gnu::always_inline]] inline

namespace ashlar::kernels::cpu::amx {
namespace {

constexpr int64_t kLanes = 16;
constexpr float kSmallest = 1e-30f;

ASHLAR_INLINE __mmask16 first16(int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}
ASHLAR_INLINE __m512 load(const bf16* at, __mmask16 mask = 0xffff) {
  const __m256i x = _mm256_maskz_loadu_epi16(mask, at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
ASHLAR_INLINE __m512 load(const float* at, __mmask16 mask = 0xffff) {
  return _mm512_maskz_loadu_ps(mask, at);
}
ASHLAR_INLINE void store(__m512 low, __m512 high, bf16* to) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// a b, or 0 where a is below kSmallest.
ASHLAR_INLINE __m512 times_or_0(__m512 a, __m512 b) {
  return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(a, _mm512_set1_ps(kSmallest), _CMP_NLE_UQ), a, b);
}

template <typename T, typename Factor>
ASHLAR_INLINE void rows_of(const Matrix& x, int64_t rows, int64_t cols, bf16* to, Factor factor) {
  const T* from = reinterpret_cast<const T*>(x.data);
  const int64_t whole = x.cols / kBlock * kBlock, num_rows = x.rows, stride = x.stride;
  for (int64_t i = 0; i < num_rows; ++i, from += stride, to += cols) {
    int64_t c = 0;
    for (; c < whole; c += kBlock)
      store(factor.times(load(from + c), i, c),
            factor.times(load(from + c + kLanes), i, c + kLanes), to + c);
    for (; c < cols; c += kBlock)
      store(factor.times(load(from + c, first16(x.cols - c)), i, c),
            factor.times(load(from + c + kLanes, first16(x.cols - c - kLanes)), i, c + kLanes),
            to + c);
  }
  std::fill_n(to, (rows - x.rows) * cols, bf16());
}

struct OfRow {
  float factor;
  const float* factors;
  ASHLAR_INLINE __m512 times(__m512 x, int64_t i, int64_t) const {
    return _mm512_mul_ps(x, _mm512_set1_ps(factors ? factor * factors[i] : factor));
  }
};
struct OfElement {
  const float* by;
  int64_t cols;
  ASHLAR_INLINE __m512 times(__m512 x, int64_t i, int64_t c) const {
    return _mm512_mul_ps(x, load(by + i * cols + c));
  }
};

template <typename Factor>
[[ASHLAR_VECTORS]] void rows_of_any(const Matrix& x, int64_t rows, int64_t cols, bf16* to,
                                    const Factor& factor) {
  x.dtype == DType::kBF16 ? rows_of<bf16>(x, rows, cols, to, factor)
                          : rows_of<float>(x, rows, cols, to, factor);
}

// Picks the lower 16 of two rows of 32 as pairs, for _mm512_permutex2var_epi16.
ASHLAR_INLINE __m512i pairs_low() {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_load_si512(kLow);
}

// Rows [16 v, 16 v + 16) of pairs, of which each has v whole vectors and a part of another.  e
// holds the decays between the tokens before and the row's own.
template <int v, bool kStrict, typename To>
ASHLAR_INLINE void pair_rows(const PairDecays& d, const float* p, const float* factors,
                             __m512 (&e)[4], To* to) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t i = v * kLanes + lane;
    if (i >= d.rows) return;
    const auto own = __mmask16(1u << lane), before = __mmask16(own - 1);
    __m512 row[4] = {};
    if (i < d.n) {
      const __m512 a = _mm512_set1_ps(d.a[i]),
                   factor = _mm512_set1_ps(factors ? -factors[i] : 1.0f);
#pragma GCC unroll 4
      for (int b = 0; b <= v; ++b) e[b] = times_or_0(e[b], a);
      const __m512 known = e[v];
      e[v] = _mm512_mask_mov_ps(e[v], own, _mm512_set1_ps(1));
#pragma GCC unroll 4
      for (int b = 0; b <= v; ++b) {
        const __mmask16 seen = b < v ? __mmask16(0xffff) : kStrict ? before : before | own;
        const __m512 decay = b == v && kStrict ? known : e[b];
        row[b] = _mm512_maskz_mul_ps(seen, load(p + i * kPairs + b * kLanes),
                                     kStrict && factors ? _mm512_mul_ps(decay, factor) : decay);
      }
    }
    if constexpr (std::is_same_v<To, bf16>) {
      store(row[0], row[1], to + i * kPairs);
      store(row[2], row[3], to + i * kPairs + kBlock);
    } else {
#pragma GCC unroll 4
      for (int b = 0; b < 4; ++b) _mm512_storeu_ps(to + i * kPairs + b * kLanes, row[b]);
    }
  }
}

template <bool kStrict, typename To>
[[ASHLAR_VECTORS]] void pairs_of(const PairDecays& d, const float* p, const float* factors,
                                 To* to) {
  __m512 e[4] = {};
  pair_rows<0, kStrict>(d, p, factors, e, to);
  pair_rows<1, kStrict>(d, p, factors, e, to);
  pair_rows<2, kStrict>(d, p, factors, e, to);
  pair_rows<3, kStrict>(d, p, factors, e, to);
}

// Row i of N in place of row i of L, of the block whose first row is `block`.
template <int kVectors>
ASHLAR_INLINE void invert_row(float* block, int64_t i) {
  float* row = block + i * kPairs;
  __m512 even[2], odd[2];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    even[v] = load(row + v * kLanes);
    odd[v] = _mm512_setzero_ps();
  }
  int64_t j = 0;
  for (; j + 1 < i; j += 2) {
    const __m512 a = _mm512_set1_ps(row[j]), b = _mm512_set1_ps(row[j + 1]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      even[v] = _mm512_fmadd_ps(a, load(block + j * kPairs + v * kLanes), even[v]);
      odd[v] = _mm512_fmadd_ps(b, load(block + (j + 1) * kPairs + v * kLanes), odd[v]);
    }
  }
  if (j < i) {
    const __m512 a = _mm512_set1_ps(row[j]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
      even[v] = _mm512_fmadd_ps(a, load(block + j * kPairs + v * kLanes), even[v]);
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v)
    _mm512_storeu_ps(row + v * kLanes, _mm512_add_ps(even[v], odd[v]));
}

}  // namespace

void prefetch(const Matrix& x) {
  const int64_t size = size_of(x.dtype);
  for (int64_t i = 0; i < x.rows; ++i) {
    const std::byte* row = x.data + i * x.stride * size;
    for (int64_t b = 0; b < x.cols * size; b += 64) __builtin_prefetch(row + b, 0, 2);
  }
}

void to_rows(const Matrix& x, float factor, const float* factors, int64_t rows, int64_t cols,
             bf16* to) {
  rows_of_any(x, rows, cols, to, OfRow{factor, factors});
}
void to_rows_by(const Matrix& x, const float* by, int64_t rows, int64_t cols, bf16* to) {
  rows_of_any(x, rows, cols, to, OfElement{by, cols});
}

[[ASHLAR_VECTORS]] void scale_by(const float* by, int64_t rows, int64_t cols, float* to) {
  for (int64_t i = 0; i < rows * cols; i += kLanes)
    _mm512_storeu_ps(to + i, _mm512_mul_ps(load(to + i), load(by + i)));
}
[[ASHLAR_VECTORS]] void add_by(const float* x, const float* by, int64_t rows, int64_t cols,
                               float* to) {
  for (int64_t i = 0; i < rows * cols; i += kLanes)
    _mm512_storeu_ps(to + i, _mm512_fmadd_ps(load(x + i), load(by + i), load(to + i)));
}

[[ASHLAR_VECTORS]] void to_panels(const bf16* x, int64_t rows, int64_t cols, int64_t depth,
                                  bf16* to) {
  const __m512i low = pairs_low(), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t c = 0; c < cols; c += kBlock) {
    bf16* panel = to + c * depth;
    for (int64_t k = 0; k < rows; k += 2, panel += 2 * kBlock) {
      const __m512i even = _mm512_loadu_si512(x + k * cols + c),
                    odd = _mm512_loadu_si512(x + (k + 1) * cols + c);
      _mm512_storeu_si512(panel, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(panel + kBlock, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

void to_transposed_panels(const bf16* x, int64_t stride, int64_t rows, int64_t cols, bf16* to) {
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t c = 0; c < cols; c += kBlock)
      gemm::transpose_bf16_pairs(reinterpret_cast<const std::byte*>(x + r * stride + c), stride * 2,
                                 reinterpret_cast<std::byte*>(to + r / kBlock * kBlock * cols +
                                                              c * kBlock + r % kBlock * 2),
                                 kBlock * 4);
}

void to_transposed_rows(const bf16* panels, int64_t depth, int64_t cols, bf16* to, int64_t stride) {
  for (int64_t c = 0; c < cols; c += kLanes)
    for (int64_t k = 0; k < depth; k += kBlock)
      gemm::transpose_bf16_pairs(
          reinterpret_cast<const std::byte*>(panels + c / kBlock * kBlock * depth + k * kBlock +
                                             c % kBlock * 2),
          kBlock * 4, reinterpret_cast<std::byte*>(to + c * stride + k), stride * 2);
}

[[ASHLAR_VECTORS]] void pass_state(float* M, const float* whole, int64_t rows, int64_t cols,
                                   bf16* to) {
  for (int64_t i = 0; i < rows; ++i, M += cols, to += cols) {
    const __m512 factor = _mm512_set1_ps(whole[i]);
    for (int64_t c = 0; c < cols; c += kBlock) {
      const __m512 low = load(M + c), high = load(M + c + kLanes);
      store(low, high, to + c);
      _mm512_storeu_ps(M + c, _mm512_mul_ps(low, factor));
      _mm512_storeu_ps(M + c + kLanes, _mm512_mul_ps(high, factor));
    }
  }
}

[[ASHLAR_VECTORS]] void running_products(const float* a, int64_t n, int64_t cols, float* in,
                                         float* out) {
  const auto flush = [](float x) { return x < kSmallest ? 0.0f : x; };
  if (cols == 1) {
    float passed = 1, rest = 1;
    for (int64_t i = 0; i < n; ++i) in[i] = passed = flush(passed * a[i]);
    for (int64_t i = n - 1; i >= 0; --i) {
      out[i] = rest;
      rest = flush(rest * a[i]);
    }
    return;
  }
  for (int64_t c = 0; c < cols; c += kLanes) {
    __m512 passed = _mm512_set1_ps(1), rest = passed;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = i * cols + c, back = (n - 1 - i) * cols + c;
      _mm512_storeu_ps(in + at, passed = times_or_0(passed, load(a + at)));
      _mm512_storeu_ps(out + back, rest);
      rest = times_or_0(rest, load(a + back));
    }
  }
}

[[ASHLAR_VECTORS]] int64_t segment_products(const float* a, int64_t first, int64_t n, int64_t cols,
                                            float* later, float* earlier) {
  std::fill_n(later + first * cols, cols, 1.0f);
  std::fill_n(earlier + first * cols, cols, 1.0f);
  for (int64_t at = first * cols - kLanes; at >= 0; at -= kLanes)
    _mm512_storeu_ps(earlier + at, times_or_0(load(earlier + at + cols), load(a + at + cols)));
  int64_t i = first + 1;
  for (; i < n; ++i) {
    __mmask16 faint = 0;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int64_t at = i * cols + c;
      const __m512 passed = _mm512_mul_ps(load(later + at - cols), load(a + at));
      faint |= _mm512_cmp_ps_mask(passed, _mm512_set1_ps(kFaintest), _CMP_NGE_UQ);
      _mm512_storeu_ps(later + at, passed);
      const __m512 guess = _mm512_rcp14_ps(passed);  // within 2^-14, and one step of Newton
      _mm512_storeu_ps(earlier + at,
                       _mm512_mul_ps(guess, _mm512_fnmadd_ps(passed, guess, _mm512_set1_ps(2))));
    }
    if (faint) break;
  }
  return i;
}

void keep_pairs(const PairDecays& d, const float* p, bf16* to) {
  pairs_of<false>(d, p, nullptr, to);
}
void keep_earlier(const PairDecays& d, const float* p, const float* factors, float* to) {
  pairs_of<true>(d, p, factors, to);
}
void keep_earlier(const PairDecays& d, const float* p, bf16* to) {
  pairs_of<true>(d, p, nullptr, to);
}

[[ASHLAR_VECTORS]] void invert_blocks(float* l, int64_t rows, bf16* to) {
  float* second = l + kBlock * kPairs + kBlock;
  for (int64_t i = 1; i < kBlock; ++i) {
    i < kLanes ? invert_row<1>(l, i) : invert_row<2>(l, i);
    if (rows > kBlock) i < kLanes ? invert_row<1>(second, i) : invert_row<2>(second, i);
  }
  for (int64_t i = 0; i < rows * kPairs; i += kBlock)
    store(load(l + i), load(l + i + kLanes), to + i);
}

[[ASHLAR_VECTORS]] void write(const Written& w, bool has_read, float* read) {
  const bf16* v = w.v;
  for (int64_t i = 0; i < w.n; ++i, v += w.cols, read += w.cols) {
    const __m512 factor = _mm512_set1_ps(w.factors[i]),
                 decay = _mm512_set1_ps(w.decays ? w.decays[i] : 1);
    for (int64_t c = 0; c < w.cols; c += kLanes) {
      __m512 x = load(v + c);
      if (has_read) x = _mm512_fnmadd_ps(decay, load(read + c), x);
      _mm512_storeu_ps(read + c, _mm512_mul_ps(factor, x));
    }
  }
  std::fill_n(read, (w.rows - w.n) * w.cols, 0.0f);
}

[[ASHLAR_VECTORS]] void add_dots(const bf16* x, const float* y, int64_t rows, int64_t cols,
                                 float sign, float* dots) {
  for (int64_t i = 0; i < rows; ++i, x += cols, y += cols) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int64_t c = 0; c < cols; c += kBlock) {
      even = _mm512_fmadd_ps(load(x + c), load(y + c), even);
      odd = _mm512_fmadd_ps(load(x + c + kLanes), load(y + c + kLanes), odd);
    }
    dots[i] += sign * _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
  }
}

[[ASHLAR_VECTORS]] float dot(const float* x, const float* y, int64_t n) {
  __m512 sums[4] = {};
  for (int64_t i = 0; i < n; i += 4 * kLanes)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      sums[v] = _mm512_fmadd_ps(load(x + i + v * kLanes), load(y + i + v * kLanes), sums[v]);
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

}  // namespace ashlar::kernels::cpu::amx
#endif
