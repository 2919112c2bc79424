// How it works.  Everything is in rows of whole vectors, so that only matrices of the caller have a
// tail.  Vector units are what a tile waits for: copies of bf16 rows move without conversion, and
// fp32 rows become pairs in two instructions, a conversion of two rows and a permutation.
//
// invert_blocks solves N = L + L N row by row, which has no division: row i of N is row i of L plus
// rows j < i of N, each times l[i][j].  Blocks do not depend on each other and run side by side.
#include "ashlar/kernels/cpu/recurrence/amx_passes.h"

#if defined(__x86_64__)

#include <algorithm>

#include "ashlar/kernels/cpu/gemm/bf16.h"
#include "ashlar/kernels/cpu/recurrence/amx_vectors.h"

namespace ashlar::kernels::cpu::amx {
namespace {

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
struct One {
  ASHLAR_INLINE __m512 times(__m512 x, int64_t, int64_t) const { return x; }
};

template <typename T, typename Factor>
[[ASHLAR_VECTORS]] void rows_of(const Matrix& x, int64_t rows, int64_t cols, bf16* to,
                                Factor factor) {
  const T* from = reinterpret_cast<const T*>(x.data);
  const int64_t num = x.rows, used = x.cols, whole = used / kBlock * kBlock, stride = x.stride;
  for (int64_t i = 0; i < num; ++i, from += stride, to += cols) {
    int64_t c = 0;
    for (; c < whole; c += kBlock)
      store(factor.times(load(from + c), i, c),
            factor.times(load(from + c + kLanes), i, c + kLanes), to + c);
    for (; c < cols; c += kBlock)
      store(factor.times(load(from + c, first16(used - c)), i, c),
            factor.times(load(from + c + kLanes, first16(used - c - kLanes)), i, c + kLanes),
            to + c);
  }
  std::fill_n(to, (rows - num) * cols, bf16());
}

[[ASHLAR_VECTORS]] void copy_rows(const Matrix& x, int64_t rows, int64_t cols, bf16* to) {
  const bf16* from = reinterpret_cast<const bf16*>(x.data);
  const int64_t num = x.rows, used = x.cols, stride = x.stride;
  for (int64_t i = 0; i < num; ++i, from += stride, to += cols)
    for (int64_t c = 0; c < cols; c += kBlock)
      _mm512_storeu_si512(to + c, _mm512_maskz_loadu_epi16(first32(used - c), from + c));
  std::fill_n(to, (rows - num) * cols, bf16());
}

template <typename T, typename Factor>
[[ASHLAR_VECTORS]] void panels_from(const Matrix& x, int64_t rows, int64_t cols, int64_t depth,
                                    bf16* to, Factor factor) {
  const __m512i order = halves_as_pairs();
  const T* from = reinterpret_cast<const T*>(x.data);
  const int64_t num = x.rows, used = x.cols, stride = x.stride;
  for (int64_t k = 0; k < rows; k += 2, from += 2 * stride, to += 2 * kBlock) {
    const bool has_odd = k + 1 < num;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const __mmask16 mask = k < num ? first16(used - c) : __mmask16(0);
      const __m512 even = factor.times(load(from + c, mask), k, c),
                   odd = has_odd ? factor.times(load(from + stride + c, mask), k + 1, c)
                                 : _mm512_setzero_ps();
      _mm512_storeu_si512(to + c / kBlock * kBlock * depth + c % kBlock * 2,
                          _mm512_permutexvar_epi16(order, two(even, odd)));
    }
  }
}

[[ASHLAR_VECTORS]] void copy_panels(const Matrix& x, int64_t rows, int64_t cols, int64_t depth,
                                    bf16* to) {
  const __m512i low = pairs_low(), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const bf16* from = reinterpret_cast<const bf16*>(x.data);
  const int64_t num = x.rows, used = x.cols, stride = x.stride;
  for (int64_t k = 0; k < rows; k += 2, from += 2 * stride, to += 2 * kBlock)
    for (int64_t c = 0; c < cols; c += kBlock) {
      const __mmask32 mask = first32(used - c);
      const __m512i even = _mm512_maskz_loadu_epi16(k < num ? mask : 0, from + c),
                    odd = _mm512_maskz_loadu_epi16(k + 1 < num ? mask : 0, from + stride + c);
      _mm512_storeu_si512(to + c * depth, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to + c * depth + kBlock, _mm512_permutex2var_epi16(even, high, odd));
    }
}

// a b, or 0 where a is below kSmallest.
ASHLAR_INLINE __m512 times_or_0(__m512 a, __m512 b) {
  return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(a, _mm512_set1_ps(kSmallest), _CMP_NLE_UQ), a, b);
}

// Rows [16 v, 16 v + 16) of pairs, of which each has v whole vectors and a part of another.  In a
// cut tile e holds what is between the tokens before and the row's own.
template <int v, bool kStrict, bool kCut, typename From, typename To>
ASHLAR_INLINE void pair_rows(const Pairs& pairs, const From* p, const float* factors,
                             __m512 (&e)[4], To* to) {
  const int64_t n = pairs.n, rows = std::min(pairs.rows, (v + 1) * kLanes);
  for (int64_t i = v * kLanes; i < rows; ++i) {
    const auto own = __mmask16(1u << (i - v * kLanes)), before = __mmask16(own - 1),
               seen = kStrict ? before : __mmask16(before | own);
    __m512 row[4] = {};
    if (i < n) {
      if constexpr (kCut) {
        const __m512 between = _mm512_set1_ps(pairs.between[i]);
#pragma GCC unroll 4
        for (int b = 0; b <= v; ++b) e[b] = times_or_0(e[b], between);
        e[v] = _mm512_mask_mov_ps(e[v], own, _mm512_set1_ps(1));
      }
      const __m512 factor = _mm512_set1_ps(factors ? -factors[i] : 1.0f);
#pragma GCC unroll 4
      for (int b = 0; b <= v; ++b) {
        const From* from = p + i * kPairs + b * kLanes;
        row[b] = b < v ? load(from) : load(from, seen);
        if constexpr (kCut) row[b] = _mm512_mul_ps(row[b], e[b]);
        if (factors) row[b] = _mm512_mul_ps(row[b], factor);
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

template <bool kStrict, bool kCut, typename From, typename To>
[[ASHLAR_VECTORS]] void pairs_in(const Pairs& pairs, const From* p, const float* factors, To* to) {
  __m512 e[4] = {};
  pair_rows<0, kStrict, kCut>(pairs, p, factors, e, to);
  pair_rows<1, kStrict, kCut>(pairs, p, factors, e, to);
  pair_rows<2, kStrict, kCut>(pairs, p, factors, e, to);
  pair_rows<3, kStrict, kCut>(pairs, p, factors, e, to);
}
template <bool kStrict, typename From, typename To>
void pairs_of(const Pairs& pairs, const From* p, const float* factors, To* to) {
  pairs.between ? pairs_in<kStrict, true>(pairs, p, factors, to)
                : pairs_in<kStrict, false>(pairs, p, factors, to);
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
  const int64_t size = size_of(x.dtype), row_bytes = x.cols * size;
  for (int64_t i = 0; i < x.rows; ++i) {
    const std::byte* row = x.data + i * x.stride * size;
    for (int64_t b = 0; b < row_bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
  }
}

void to_rows(const Matrix& x, float factor, const float* factors, int64_t rows, int64_t cols,
             bf16* to) {
  const bool scaled = factor != 1 || factors;
  if (x.dtype == DType::kBF16)
    return scaled ? rows_of<bf16>(x, rows, cols, to, OfRow{factor, factors})
                  : copy_rows(x, rows, cols, to);
  scaled ? rows_of<float>(x, rows, cols, to, OfRow{factor, factors})
         : rows_of<float>(x, rows, cols, to, One());
}
void to_rows_by(const Matrix& x, const float* by, int64_t rows, int64_t cols, bf16* to) {
  x.dtype == DType::kBF16 ? rows_of<bf16>(x, rows, cols, to, OfElement{by, cols})
                          : rows_of<float>(x, rows, cols, to, OfElement{by, cols});
}

void to_panels(const Matrix& x, float factor, const float* factors, int64_t rows, int64_t cols,
               int64_t depth, bf16* to) {
  const bool scaled = factor != 1 || factors;
  if (x.dtype == DType::kBF16)
    return scaled ? panels_from<bf16>(x, rows, cols, depth, to, OfRow{factor, factors})
                  : copy_panels(x, rows, cols, depth, to);
  scaled ? panels_from<float>(x, rows, cols, depth, to, OfRow{factor, factors})
         : panels_from<float>(x, rows, cols, depth, to, One());
}

void to_transposed_panels(const bf16* x, int64_t rows, int64_t cols, bf16* to) {
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t c = 0; c < cols; c += kBlock)
      gemm::transpose_bf16_pairs(reinterpret_cast<const std::byte*>(x + r * cols + c), cols * 2,
                                 reinterpret_cast<std::byte*>(to + r / kBlock * kBlock * cols +
                                                              c * kBlock + r % kBlock * 2),
                                 kBlock * 4);
}

void to_transposed_rows(const bf16* panels, int64_t depth, int64_t cols, bf16* to) {
  for (int64_t c = 0; c < cols; c += kLanes)
    for (int64_t k = 0; k < depth; k += kBlock)
      gemm::transpose_bf16_pairs(
          reinterpret_cast<const std::byte*>(panels + c / kBlock * kBlock * depth + k * kBlock +
                                             c % kBlock * 2),
          kBlock * 4, reinterpret_cast<std::byte*>(to + c * kPairs + k), kPairs * 2);
}

[[ASHLAR_VECTORS]] void add_by(const float* x, const float* by, int64_t rows, int64_t cols,
                               float* to) {
  for (int64_t i = 0; i < rows * cols; i += kLanes)
    _mm512_storeu_ps(to + i, _mm512_fmadd_ps(load(x + i), load(by + i), load(to + i)));
}

[[ASHLAR_VECTORS]] void pass_gradient(float* D, const float* made, const float* passed,
                                      int64_t rows, int64_t cols, bf16* to) {
  for (int64_t i = 0; i < rows; ++i, D += cols, to += cols) {
    const __m512 of_made = _mm512_set1_ps(made[i]), of_passed = _mm512_set1_ps(passed[i]);
    for (int64_t c = 0; c < cols; c += kBlock) {
      const __m512 low = load(D + c), high = load(D + c + kLanes);
      store(_mm512_mul_ps(low, of_made), _mm512_mul_ps(high, of_made), to + c);
      _mm512_storeu_ps(D + c, _mm512_mul_ps(low, of_passed));
      _mm512_storeu_ps(D + c + kLanes, _mm512_mul_ps(high, of_passed));
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

[[ASHLAR_VECTORS]] int64_t segment_products(const float* a, int64_t n, int64_t cols, float* in,
                                            float* inverse) {
  int64_t i = 0;
  for (; i < n; ++i) {
    __mmask16 faint = 0;
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int64_t at = i * cols + c;
      const __m512 before = i == 0 ? _mm512_set1_ps(1) : load(in + at - cols),
                   passed = _mm512_mul_ps(before, load(a + at));
      faint |= _mm512_cmp_ps_mask(passed, _mm512_set1_ps(kFaintest), _CMP_NGE_UQ);
      _mm512_storeu_ps(in + at, passed);
      const __m512 guess = _mm512_rcp14_ps(passed);  // within 2^-14, and one step of Newton
      _mm512_storeu_ps(inverse + at,
                       _mm512_mul_ps(guess, _mm512_fnmadd_ps(passed, guess, _mm512_set1_ps(2))));
    }
    if (faint) break;
  }
  return i;
}

[[ASHLAR_VECTORS]] void products_back(const float* a, int64_t end, int64_t cols, float* to) {
  const __m512 one = _mm512_set1_ps(1);
  for (int64_t at = end * cols - kLanes; at >= 0; at -= kLanes)
    _mm512_storeu_ps(to + at, times_or_0(at + cols < end * cols ? load(to + at + cols) : one,
                                         load(a + at + cols)));
}

void keep_pairs(const Pairs& pairs, const float* p, bool strict, bf16* to) {
  strict ? pairs_of<true>(pairs, p, nullptr, to) : pairs_of<false>(pairs, p, nullptr, to);
}
void keep_pairs(const Pairs& pairs, const bf16* p, bf16* to) {
  pairs_of<false>(pairs, p, nullptr, to);
}
void keep_earlier(const Pairs& pairs, const float* p, const float* factors, float* to) {
  pairs_of<true>(pairs, p, factors, to);
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

[[ASHLAR_VECTORS]] void store_rows(const float* x, int64_t stride, const float* factors,
                                   const Matrix& to) {
  float* row = reinterpret_cast<float*>(to.data);
  const int64_t rows = to.rows, cols = to.cols, step = to.stride;
  const bool lines =
      reinterpret_cast<uintptr_t>(row) % 64 == 0 && step % kLanes == 0 && cols % kLanes == 0;
  for (int64_t i = 0; i < rows; ++i, x += stride, row += step) {
    const __m512 factor = _mm512_set1_ps(factors ? factors[i] : 1);
    for (int64_t c = 0; c < cols; c += kLanes) {
      const __m512 value = _mm512_mul_ps(load(x + c), factor);
      if (lines)
        _mm512_stream_ps(row + c, value);
      else
        _mm512_mask_storeu_ps(row + c, first16(cols - c), value);
    }
  }
}

[[ASHLAR_VECTORS]] void add_products(const bf16* x, const float* y, int64_t rows, int64_t cols,
                                     float sign, float* products) {
  const __m512 signs = _mm512_set1_ps(sign);
  for (int64_t i = 0; i < rows * cols; i += kLanes)
    _mm512_storeu_ps(products + i, _mm512_fmadd_ps(_mm512_mul_ps(load(x + i), signs), load(y + i),
                                                   load(products + i)));
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

[[ASHLAR_VECTORS]] void sum_around(int64_t n, int64_t cols, int64_t stride, const float* before,
                                   float* after, float* sum, float* to, int64_t to_stride) {
  for (int64_t c = 0; c < cols; c += kLanes) {
    const __mmask16 mask = first16(cols - c);
    __m512 rest = _mm512_setzero_ps(), passed = load(sum + c, mask);
    for (int64_t i = n - 1; i >= 0; --i) {
      rest = _mm512_add_ps(rest, load(after + i * stride + c, mask));
      _mm512_mask_storeu_ps(after + i * stride + c, mask, rest);
    }
    for (int64_t i = 0; i < n; ++i) {
      _mm512_mask_storeu_ps(to + i * to_stride + c, mask,
                            _mm512_add_ps(passed, load(after + i * stride + c, mask)));
      passed = _mm512_add_ps(passed, load(before + i * stride + c, mask));
    }
  }
}

}  // namespace ashlar::kernels::cpu::amx
#endif
