// How it works.  The loops are plain, over neighbouring elements, so that the compiler makes
// vectors of them for each instruction set, in float and in double: one source for the fast path
// and for its test in fp64.  Sums run in kSums lanes, which are added up at the end.
//
//   mask      row i keeps its columns up to i, followed by zeros: masked values are never used in a
//             computation
//   solve     row i of W needs the rows before it: they are subtracted in registers, two rows of
//             four vectors at a time
//   diagonal  k_j, or 1, times the gates passed since token j: with each token i it is multiplied
//             by one more gate, so that no exponential is needed and none can overflow
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/recurrence/rows_fast.cpp"
#include "ashlar/kernels/cpu/recurrence/rows.h"
#include "ashlar/kernels/cpu/simd/dispatch.h"
#include "hwy/cache_control.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kSums = 16;

HWY_INLINE float real(float x) {
  return x;
}
HWY_INLINE double real(double x) {
  return x;
}
HWY_INLINE float real(bf16 x) {
  return float(x);
}

// body(row i of x) for its rows; double has F64 alone, float F32 and BF16.
template <typename Real, typename Body>
HWY_INLINE void for_rows(const Matrix& x, Body body) {
  if constexpr (std::is_same_v<Real, double>) {
    for (int64_t i = 0; i < x.rows; ++i)
      body(i, reinterpret_cast<const double*>(x.data) + i * x.stride);
  } else if (x.dtype == DType::kBF16) {
    for (int64_t i = 0; i < x.rows; ++i)
      body(i, reinterpret_cast<const bf16*>(x.data) + i * x.stride);
  } else {
    for (int64_t i = 0; i < x.rows; ++i)
      body(i, reinterpret_cast<const float*>(x.data) + i * x.stride);
  }
}

template <typename Real>
void copy(const Matrix& x, Real factor, Real* to, int64_t stride) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    Real* row = to + i * stride;
    for (int64_t c = 0; c < x.cols; ++c) row[c] = factor * real(from[c]);
  });
}

template <typename Real>
void stream(const Matrix& x, Real factor, Real* to, int64_t stride) {
  copy(x, factor, to, stride);
}
template <>
void stream(const Matrix& x, float factor, float* to, int64_t stride) {
  constexpr int64_t kLine = 16;
  const bool lines = uintptr_t(to) % 64 == 0 && stride % kLine == 0 && x.cols % kLine == 0;
  if (!lines || x.dtype != DType::kF32) return copy(x, factor, to, stride);
  const D d;
  const auto factors = hn::Set(d, factor);
  for_rows<float>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    if constexpr (std::is_same_v<decltype(from), const float*>)
      for (int64_t c = 0; c < x.cols; c += kLanes)
        hn::Stream(hn::Mul(hn::LoadU(d, from + c), factors), d, to + i * stride + c);
  });
  hwy::FlushStream();
}

template <typename Real>
void scale(const Matrix& x, const Real* factors, Real* to, int64_t stride) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    Real* row = to + i * stride;
    const Real factor = factors[i];
    for (int64_t c = 0; c < x.cols; ++c) row[c] = factor * real(from[c]);
  });
}

template <typename Real>
void times(const Matrix& x, const Real* by, int64_t by_stride, Real* to, int64_t stride) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    Real* row = to + i * stride;
    const Real* factors = by + i * by_stride;
    for (int64_t c = 0; c < x.cols; ++c) row[c] = factors[c] * real(from[c]);
  });
}

template <typename Real>
void add(const Matrix& x, Real* to, int64_t stride) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    Real* row = to + i * stride;
    for (int64_t c = 0; c < x.cols; ++c) row[c] += real(from[c]);
  });
}

template <typename Real>
void subtract_from(const Matrix& x, Real* to, int64_t stride) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    Real* row = to + i * stride;
    for (int64_t c = 0; c < x.cols; ++c) row[c] = real(from[c]) - row[c];
  });
}

void exp(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, auto count)
                   HWY_ATTR { store(exp_approx(load(x + i, count)), y + i, count); });
}
void exp(const double* x, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
}

template <typename Real>
void exp_pairs(const Real* log_a, int64_t n, Real* e) {
  Real sums[kPairs] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) sums[j] += log_a[i];
    exp(sums, i + 1, e + i * kPairs);
  }
}

template <typename Real>
void mask(const Real* e, int64_t n, bool strict, Real* p) {
  for (int64_t i = 0; i < n; ++i) {
    Real* row = p + i * kPairs;
    const int64_t end = strict ? i : i + 1;
    if (e)
      for (int64_t j = 0; j < end; ++j) row[j] *= e[i * kPairs + j];
    for (int64_t j = end; j < n; ++j) row[j] = 0;
  }
}

// Rows in the order in which they become known: from the first on, or (kBack) from the last.  Two
// rows at a time share what they read of the rows before.
template <int kVectors, bool kBack, typename Real>
HWY_INLINE void solve_columns(const Real* l, const Real* beta, int64_t n, int64_t stride, Real* y,
                              Real* w) {
  const hn::CappedTag<Real, kSums> tag;
  using Vector = hn::Vec<hn::CappedTag<Real, kSums>>;
  constexpr int64_t kWide = hn::MaxLanes(hn::CappedTag<Real, kSums>());
  const auto row = [&](int64_t p) { return kBack ? n - 1 - p : p; };
  const auto factor = [&](int64_t p, int64_t q) HWY_ATTR {
    return hn::Set(tag, kBack ? l[row(q) * kPairs + row(p)] : -l[row(p) * kPairs + row(q)]);
  };
  const auto load_row = [&](const Real* from, int64_t p, Vector(&to)[kVectors]) HWY_ATTR {
    for (int v = 0; v < kVectors; ++v) to[v] = hn::LoadU(tag, from + row(p) * stride + v * kWide);
  };
  const auto finish = [&](int64_t p, Vector(&sum)[kVectors]) HWY_ATTR {  // sum becomes w
    const auto b = hn::Set(tag, kBack ? -beta[row(p)] : beta[row(p)]);
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[v], tag, y + row(p) * stride + v * kWide);
      sum[v] = hn::Mul(sum[v], b);
      hn::StoreU(sum[v], tag, w + row(p) * stride + v * kWide);
    }
  };
  for (int64_t p = 0; p < n; p += 2) {
    const int64_t next = std::min(p + 1, n - 1);
    Vector first[kVectors], second[kVectors], known[kVectors];
    load_row(y, p, first);
    load_row(y, next, second);
    for (int64_t q = 0; q < p; ++q) {
      const auto a = factor(p, q), b = factor(next, q);
      load_row(w, q, known);
      for (int v = 0; v < kVectors; ++v) {
        first[v] = hn::MulAdd(a, known[v], first[v]);
        second[v] = hn::MulAdd(b, known[v], second[v]);
      }
    }
    finish(p, first);
    if (next == p) break;
    const auto a = factor(next, p);
    for (int v = 0; v < kVectors; ++v) second[v] = hn::MulAdd(a, first[v], second[v]);
    finish(next, second);
  }
}

// Columns up to the next multiple of two vectors are computed with; rows have room for them.
template <bool kBack, typename Real>
void solve(const Real* l, const Real* beta, int64_t n, int64_t cols, int64_t stride, Real* y,
           Real* w) {
  constexpr int64_t kWide = hn::MaxLanes(hn::CappedTag<Real, kSums>());
  int64_t c = 0;
  for (; c + 2 * kWide < cols; c += 4 * kWide)
    solve_columns<4, kBack>(l, beta, n, stride, y + c, w + c);
  if (c < cols) solve_columns<2, kBack>(l, beta, n, stride, y + c, w + c);
}

template <typename A, typename Real>
HWY_INLINE Real dot_of(const A* x, const Real* y, int64_t n) {
  Real sums[kSums] = {};
  int64_t c = 0;
  for (; c + kSums <= n; c += kSums)
    for (int64_t i = 0; i < kSums; ++i) sums[i] += real(x[c + i]) * y[c + i];
  for (int64_t i = 0; c + i < n; ++i) sums[i] += real(x[c + i]) * y[c + i];
  for (int64_t half = kSums / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

template <typename Real>
void add_dots(const Matrix& x, const Real* y, int64_t stride, Real sign, Real* dots) {
  for_rows<Real>(x, [&](int64_t i, const auto* from)
                        HWY_ATTR { dots[i] += sign * dot_of(from, y + i * stride, x.cols); });
}

template <typename Real>
void add_products(const Matrix& x, const Real* y, int64_t stride, Real sign, Real* to) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    const Real* row = y + i * stride;
    for (int64_t c = 0; c < x.cols; ++c) to[i * stride + c] += sign * real(from[c]) * row[c];
  });
}

constexpr int64_t kStrip = 64;

// Reads rows of a matrix as Real, of one strip of channels.
template <typename Real>
HWY_INLINE void read_strip(const Matrix& x, int64_t first, int64_t count,
                           Real (&to)[kSubTile][kStrip]) {
  for_rows<Real>(x, [&](int64_t i, const auto* from) HWY_ATTR {
    for (int64_t c = 0; c < count; ++c) to[i][c] = real(from[first + c]);
    for (int64_t c = count; c < kStrip; ++c) to[i][c] = 0;
  });
}

// u[c] has a lane for every token j: k_j times the gates passed since j, 0 for tokens to come.
template <typename Real>
void diagonal_pairs(const DiagonalPairs<Real>& d, Real* p) {
  const hn::CappedTag<Real, kSubTile> tag;
  constexpr int64_t kWide = hn::MaxLanes(hn::CappedTag<Real, kSubTile>());
  const int64_t n = d.x.rows;
  for (int64_t first = 0; first < d.x.cols; first += kStrip) {
    const int64_t count = std::min(kStrip, d.x.cols - first);
    Real x[kSubTile][kStrip], k[kSubTile][kStrip];
    read_strip(d.x, first, count, x);
    read_strip(d.k, first, count, k);
    for (int64_t lane0 = 0; lane0 < n; lane0 += kWide) {
      alignas(64) Real u[kStrip][kWide] = {}, sums[kWide];
      for (int64_t i = lane0; i < n; ++i) {
        const Real* a = d.a + i * d.a_stride + first;
        alignas(64) Real is_own[kWide] = {};
        if (i < lane0 + kWide) is_own[i - lane0] = 1;
        const auto own = hn::Load(tag, is_own);
        auto even = hn::Zero(tag), odd = even;
        for (int64_t c = 0; c < count; ++c) {
          const auto passed = hn::MulAdd(own, hn::Set(tag, k[i][c]),
                                         hn::Mul(hn::Load(tag, u[c]), hn::Set(tag, a[c])));
          hn::Store(passed, tag, u[c]);
          even = hn::MulAdd(passed, hn::Set(tag, x[i][c]), even);
          std::swap(even, odd);
        }
        hn::Store(hn::Add(even, odd), tag, sums);
        for (int64_t j = lane0; j <= std::min(i, lane0 + kWide - 1); ++j)
          p[i * kPairs + j] = sums[j - lane0] + (first == 0 ? 0 : p[i * kPairs + j]);
      }
    }
  }
}

template <typename Real>
void diagonal_gradient(const DiagonalPairs<Real>& d, const Real* dp, int64_t stride, Real* dx,
                       Real* dk) {
  const int64_t n = d.x.rows;
  for (int64_t first = 0; first < d.x.cols; first += kStrip) {
    const int64_t count = std::min(kStrip, d.x.cols - first);
    Real x[kSubTile][kStrip], k[kSubTile][kStrip], e[kStrip], sum[kStrip];
    read_strip(d.x, first, count, x);
    read_strip(d.k, first, count, k);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < kStrip; ++c) e[c] = 1;
      for (int64_t c = 0; c < kStrip; ++c) sum[c] = 0;
      for (int64_t i = j; i < n; ++i) {
        const Real* a = d.a + i * d.a_stride + first;
        if (i > j)
          for (int64_t c = 0; c < count; ++c) e[c] *= a[c];
        const Real factor = dp[i * kPairs + j];
        Real* to = dx + i * stride + first;
        for (int64_t c = 0; c < count; ++c) to[c] += factor * (k[j][c] * e[c]);
        for (int64_t c = 0; c < kStrip; ++c) sum[c] += factor * (x[i][c] * e[c]);
      }
      Real* to = dk + j * stride + first;
      for (int64_t c = 0; c < count; ++c) to[c] += sum[c];
    }
  }
}

template <typename Real>
void sum_around(int64_t n, int64_t cols, int64_t stride, const Real* before, Real* after, Real* sum,
                Real* to, int64_t to_stride) {
  for (int64_t i = n - 2; i >= 0; --i)
    for (int64_t c = 0; c < cols; ++c) after[i * stride + c] += after[(i + 1) * stride + c];
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < cols; ++c) {
      to[i * to_stride + c] = sum[c] + after[i * stride + c];
      sum[c] += before[i * stride + c];
    }
}

// Columns [first, first + count) of a token, count <= kColumns.
constexpr int64_t kColumns = 64;

template <typename Real, typename Count>
HWY_INLINE void token_columns(const TokenStep<Real>& s, int64_t first, Count count) {
  Real w[kColumns], out[kColumns] = {};
  for (int64_t e = 0; e < count; ++e) w[e] = s.v[first + e];
  if (s.delta) {
    for (int64_t c = 0; c < s.dk && s.from; ++c) {
      const Real factor = s.a[c] * s.k[c];
      const Real* row = s.from + c * s.stride + first;
      for (int64_t e = 0; e < count; ++e) w[e] -= factor * row[e];
    }
    for (int64_t e = 0; e < count; ++e) w[e] *= s.beta;
  }
  for (int64_t c = 0; c < s.dk; ++c) {
    const int64_t at = c * s.stride + first;
    const Real q = s.q[c], k = s.k[c], a = s.a[c];
    Real row[kColumns] = {};  // read whole before it is written: `to` may be `from`
    for (int64_t e = 0; e < count && s.from; ++e) row[e] = s.from[at + e];
    for (int64_t e = 0; e < count; ++e) row[e] = a * row[e] + k * w[e];
    for (int64_t e = 0; e < count; ++e) out[e] += q * row[e];
    for (int64_t e = 0; e < count; ++e) s.to[at + e] = row[e];
  }
  for (int64_t e = 0; e < count; ++e) s.out[first + e] = out[e];
}

template <typename Real>
void token(const TokenStep<Real>& s) {
  int64_t e = 0;
  for (; e + kColumns <= s.cols; e += kColumns)
    token_columns(s, e, std::integral_constant<int64_t, kColumns>());
  if (e < s.cols) token_columns(s, e, s.cols - e);
}

template <typename Real, typename Count>
HWY_INLINE void apply_columns(const Real* a, int64_t row_step, int64_t col_step, int64_t n,
                              int64_t cols, Count count, const Real* m, Real* to) {
  for (int64_t i = 0; i < n; ++i) {
    Real sum[kColumns] = {};
    for (int64_t b = 0; b < n; ++b) {
      const Real factor = a[i * row_step + b * col_step];
      for (int64_t e = 0; e < count; ++e) sum[e] += factor * m[b * cols + e];
    }
    for (int64_t e = 0; e < count; ++e) to[i * cols + e] = sum[e];
  }
}

template <typename Real>
void apply(const Real* a, int64_t row_step, int64_t col_step, int64_t n, int64_t cols,
           const Real* m, Real* to) {
  int64_t c = 0;
  for (; c + kColumns <= cols; c += kColumns)
    apply_columns(a, row_step, col_step, n, cols, std::integral_constant<int64_t, kColumns>(),
                  m + c, to + c);
  if (c < cols) apply_columns(a, row_step, col_step, n, cols, cols - c, m + c, to + c);
}

template <typename Real>
constexpr RowOps<Real> kOps = {
    .copy = copy<Real>,
    .scale = scale<Real>,
    .times = times<Real>,
    .stream = stream<Real>,
    .add = add<Real>,
    .subtract_from = subtract_from<Real>,
    .exp = exp,
    .exp_pairs = exp_pairs<Real>,
    .mask = mask<Real>,
    .solve = solve<false, Real>,
    .solve_back = solve<true, Real>,
    .add_dots = add_dots<Real>,
    .add_products = add_products<Real>,
    .diagonal_pairs = diagonal_pairs<Real>,
    .diagonal_gradient = diagonal_gradient<Real>,
    .sum_around = sum_around<Real>,
    .token = token<Real>,
    .apply = apply<Real>,
};

const RowOps<float>& ops_f32() {
  return kOps<float>;
}
const RowOps<double>& ops_f64() {
  return kOps<double>;
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(ops_f32);
HWY_EXPORT(ops_f64);

template <>
const RowOps<float>& row_ops<float>() {
  return dispatch(HWY_DISPATCH_TABLE(ops_f32))();
}
template <>
const RowOps<double>& row_ops<double>() {
  return dispatch(HWY_DISPATCH_TABLE(ops_f64))();
}

}  // namespace ashlar::kernels::cpu
#endif
