#include "ashlar/kernels/cpu/recurrence/amx_blocks.h"

#if defined(__x86_64__)

#include <algorithm>

#include "ashlar/kernels/cpu/gemm/bf16.h"
#include "ashlar/kernels/cpu/recurrence/amx_vectors.h"

namespace ashlar::kernels::cpu::amx {
namespace {

// A row of a block.
struct BlockRow {
  __m512 low, high;
};
ASHLAR_INLINE BlockRow row_of(const float* block, int64_t i) {
  return {load(block + i * kBlock), load(block + i * kBlock + kLanes)};
}
ASHLAR_INLINE BlockRow times(const BlockRow& x, float factor) {
  const __m512 f = _mm512_set1_ps(factor);
  return {_mm512_mul_ps(x.low, f), _mm512_mul_ps(x.high, f)};
}
ASHLAR_INLINE BlockRow plus(const BlockRow& x, const float* y) {
  return {_mm512_add_ps(x.low, load(y)), _mm512_add_ps(x.high, load(y + kLanes))};
}
ASHLAR_INLINE void put(const BlockRow& x, float* to) {
  _mm512_storeu_ps(to, x.low);
  _mm512_storeu_ps(to + kLanes, x.high);
}
ASHLAR_INLINE __m512i rounded(const BlockRow& x) {
  return two(x.low, x.high);
}
// Rows i and i + 1, rounded, as a pair of rows of a panel.
ASHLAR_INLINE void put_pair(__m512i even, __m512i odd, bf16* panel) {
  const __m512i low = pairs_low(), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  _mm512_storeu_si512(panel, _mm512_permutex2var_epi16(even, low, odd));
  _mm512_storeu_si512(panel + kBlock, _mm512_permutex2var_epi16(even, high, odd));
}

}  // namespace

[[ASHLAR_VECTORS]] void keep_block(const float* block, int64_t n, bool diagonal, bool strict,
                                   bf16* to, bf16* transposed) {
  alignas(64) bf16 pairs[kBlock * kBlock];
  const auto row = [&](int64_t i) ASHLAR_VECTOR_LAMBDA {
    const int64_t seen = i >= n ? 0 : diagonal ? i + (strict ? 0 : 1) : kBlock;
    return two(load(block + i * kBlock, first16(seen)),
               load(block + i * kBlock + kLanes, first16(seen - kLanes)));
  };
  for (int64_t i = 0; i < kBlock; i += 2) {
    const __m512i even = row(i), odd = row(i + 1);
    _mm512_storeu_si512(to + i * kPairs, even);
    _mm512_storeu_si512(to + (i + 1) * kPairs, odd);
    put_pair(even, odd, pairs + i * kBlock);
  }
  if (!transposed) return;
  for (int64_t c = 0; c < kBlock; c += kLanes)
    gemm::transpose_bf16_pairs(reinterpret_cast<const std::byte*>(pairs + 2 * c), kBlock * 4,
                               reinterpret_cast<std::byte*>(transposed + c * kPairs), kPairs * 2);
}

[[ASHLAR_VECTORS]] void store_state(const float* block, const StateBlock& s, float* M,
                                    bf16* panels) {
  const int64_t cols = s.cols;
  const auto row = [&](int64_t i) ASHLAR_VECTOR_LAMBDA {
    BlockRow x = times(row_of(block, i), s.made[i]);
    if (s.from) {
      const __m512 passed = _mm512_set1_ps(s.passed[i]);
      x.low = _mm512_fmadd_ps(load(s.from + i * cols), passed, x.low);
      x.high = _mm512_fmadd_ps(load(s.from + i * cols + kLanes), passed, x.high);
    }
    put(x, M + i * cols);
    return rounded(x);
  };
  for (int64_t i = 0; i < kBlock; i += 2) {
    const __m512i even = row(i), odd = row(i + 1);
    if (panels) put_pair(even, odd, panels + i * kBlock);
  }
}

template <typename T>
[[ASHLAR_VECTORS]] static void ask(const Asked& a, const float* block, float* x, bf16* panels) {
  const T* v = reinterpret_cast<const T*>(a.v.data);
  const int64_t num = a.v.rows, stride = a.v.stride, cols = a.cols;
  const __mmask16 low = first16(a.v.cols), high = first16(a.v.cols - kLanes);
  const auto row = [&](int64_t i) ASHLAR_VECTOR_LAMBDA {
    BlockRow y{};
    if (i < num) {
      y = times({load(v + i * stride, low), load(v + i * stride + kLanes, high)},
                a.factors ? a.factors[i] : 1);
      if (a.read) {
        const BlockRow read = row_of(a.read, i);
        y = {_mm512_sub_ps(y.low, read.low), _mm512_sub_ps(y.high, read.high)};
      }
      y = times(y, a.beta[i]);
    }
    if (block) y = plus(y, block + i * kBlock);
    put(y, x + i * cols);
    return rounded(y);
  };
  for (int64_t i = 0; i < kBlock; i += 2) {
    const __m512i even = row(i), odd = row(i + 1);
    put_pair(even, odd, panels + i * kBlock);
  }
}

void ask_block(const Asked& a, const float* block, float* x, bf16* panels) {
  a.v.dtype == DType::kBF16 ? ask<bf16>(a, block, x, panels) : ask<float>(a, block, x, panels);
}

[[ASHLAR_VECTORS]] void write_block(const float* block, const float* x, int64_t cols, bf16* panels,
                                    bf16* w, int64_t num) {
  for (int64_t i = 0; i < kBlock; i += 2) {
    const __m512i even = rounded(plus(row_of(block, i), x + i * cols)),
                  odd = rounded(plus(row_of(block, i + 1), x + (i + 1) * cols));
    put_pair(even, odd, panels + i * kBlock);
    if (w && i < num) _mm512_storeu_si512(w + i * cols, even);
    if (w && i + 1 < num) _mm512_storeu_si512(w + (i + 1) * cols, odd);
  }
}

[[ASHLAR_VECTORS]] void return_block(const Returned& r, const float* x, float* block) {
  const int64_t cols = r.cols;
  const auto row = [&](int64_t i, BlockRow& y) ASHLAR_VECTOR_LAMBDA {
    y = plus(row_of(block, i), x + i * cols);
    put(y, block + i * kBlock);
    const bf16* w = r.w + i * cols;
    const __m512 part = _mm512_fmadd_ps(load(w), y.low, load(r.lanes + i * kLanes));
    _mm512_storeu_ps(r.lanes + i * kLanes, _mm512_fmadd_ps(load(w + kLanes), y.high, part));
    const __m512i du = rounded(times(y, -r.beta[i]));
    _mm512_storeu_si512(r.du + i * cols, du);
    return du;
  };
  for (int64_t i = 0; i < kBlock; i += 2) {
    BlockRow even, odd;
    const __m512i du_even = row(i, even), du_odd = row(i + 1, odd);
    put_pair(du_even, du_odd, r.du_panels + i * kBlock);
    if (r.r_panels) put_pair(rounded(even), rounded(odd), r.r_panels + i * kBlock);
  }
}

template <bool kElements>
[[ASHLAR_VECTORS]] static void take(const Gradient& g, int64_t row, int64_t col, const float* block,
                                    const float* from, float* to, int64_t to_stride) {
  const int64_t cols = g.cols;
  const __m512 sign = _mm512_set1_ps(g.sign);
  for (int64_t i = 0; i < kBlock; ++i) {
    const int64_t at = (row + i) * cols + col;
    BlockRow x = row_of(block, i);
    if (g.products) {
      const bf16* of = g.of + at;
      const __m512 low = _mm512_mul_ps(load(of), x.low),
                   high = _mm512_mul_ps(load(of + kLanes), x.high);
      if constexpr (kElements) {
        float* p = g.products + at;
        put({_mm512_fmadd_ps(low, sign, load(p)), _mm512_fmadd_ps(high, sign, load(p + kLanes))},
            p);
      } else {
        float* p = g.products + (row + i) * kLanes;
        _mm512_storeu_ps(p, _mm512_fmadd_ps(_mm512_add_ps(low, high), sign, load(p)));
      }
    }
    if (g.by && kElements)
      x = {_mm512_mul_ps(x.low, load(g.by + at)), _mm512_mul_ps(x.high, load(g.by + at + kLanes))};
    else if (g.by)
      x = times(x, g.by[row + i]);
    if (from) x = plus(x, from + i * cols);
    put(x, to + i * to_stride);
  }
}

void take_gradient(const Gradient& g, int64_t row, int64_t col, const float* block,
                   const float* from, float* to, int64_t to_stride) {
  g.elements ? take<true>(g, row, col, block, from, to, to_stride)
             : take<false>(g, row, col, block, from, to, to_stride);
}

[[ASHLAR_VECTORS]] void sum_lanes(const float* lanes, int64_t n, float* dots) {
  for (int64_t i = 0; i < n; ++i) dots[i] = _mm512_reduce_add_ps(load(lanes + i * kLanes));
}

}  // namespace ashlar::kernels::cpu::amx
#endif
