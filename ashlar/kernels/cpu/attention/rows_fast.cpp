// How it works.  Loops run over rows of a tile of scores, kBlock elements apart.  They compute the
// first mask.columns of each row's group, whole vectors; within these, columns outside of
// [begin, end) are masked, at a cost only for rows that have such columns (`partly`).
//
//   forward     softmax_rows            online: maximum, exponentials, scaling of the output so far
//               exp_rows                bounded: exponentials alone, P as bf16
//   backward    softmax_gradient_rows   P and dS as floats, in place
//               softmax_gradient_pairs  the same as bf16, packed: two rows at a time, since a panel
//                                       that reduces over rows is made of pairs of them
//   decoding    scores_of, weighted_columns: few queries against rows of k and v in place
//
// exp_rows and softmax_gradient_pairs fill operands of bf16 products, and so use exp2_rough; their
// factors include log2(e).
#include "ashlar/kernels/cpu/attention/rows_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/attention/rows_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kPanelWidth = 32;  // columns of a panel of the bf16 engines

// The lanes of columns c, c+1, .. that lie in [begin, end).
HWY_INLINE hn::Mask<D> columns_in(int64_t c, int32_t begin, int32_t end) {
  const D d;
  const V column = hn::Iota(d, float(c));
  return hn::And(hn::Ge(column, hn::Set(d, float(begin))), hn::Lt(column, hn::Set(d, float(end))));
}

void softmax_rows(const BlockMask& mask, int64_t rows, float scale, float* s, float* max,
                  float* sum, float* o, int64_t o_stride) {
  const D d;
  const V scales = hn::Set(d, scale), masked = hn::Set(d, -HUGE_VALF);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = mask.columns[r / kRowGroup];
    if (n == 0) continue;
    float* row = s + r * kBlock;
    const bool partly = mask.begin[r] > 0 || mask.end[r] < n;
    V highest = hn::Set(d, max[r]);
    for (int64_t c = 0; c < n; c += lanes()) {
      V t = hn::Mul(load(row + c), scales);
      if (partly) t = hn::IfThenElse(columns_in(c, mask.begin[r], mask.end[r]), t, masked);
      store(t, row + c);  // rounded as `highest` is: the largest score, however large, gives exp(0)
      highest = hn::Max(highest, t);
    }
    highest = hn::MaxOfLanes(d, highest);
    V total = hn::Zero(d);
    for (int64_t c = 0; c < n; c += lanes()) {
      const V p = exp_approx(hn::Sub(load(row + c), highest));
      total = hn::Add(total, p);
      store(p, row + c);
    }
    const float new_max = hn::GetLane(highest), new_sum = hn::GetLane(hn::SumOfLanes(d, total));
    if (new_max > max[r]) {  // the sums so far are scaled to the new maximum
      const V factor = exp_approx(hn::Set(d, max[r] - new_max));
      for (int64_t c = 0; c < o_stride; c += lanes())
        store(hn::Mul(load(o + r * o_stride + c), factor), o + r * o_stride + c);
      sum[r] *= hn::GetLane(factor);
      max[r] = new_max;
    }
    sum[r] += new_sum;
  }
}

void softmax_gradient_rows(const BlockMask& mask, int64_t rows, float scale, const float* lse,
                           const float* delta, int64_t stride, float* s, float* dp) {
  const D d;
  const V scales = hn::Set(d, scale);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = mask.columns[r / kRowGroup];
    float *p_row = s + r * kBlock, *ds_row = dp + r * kBlock;
    const bool partly = mask.begin[r] > 0 || mask.end[r] < n;
    const V log_sum = hn::Set(d, lse[r * stride]), mean = hn::Set(d, delta[r * stride]);
    for (int64_t c = 0; c < n; c += lanes()) {
      V p = exp_approx(hn::MulSub(load(p_row + c), scales, log_sum));
      V ds = hn::Mul(hn::Mul(p, scales), hn::Sub(load(ds_row + c), mean));
      if (partly) {
        const auto in = columns_in(c, mask.begin[r], mask.end[r]);
        p = hn::IfThenElseZero(in, p);
        ds = hn::IfThenElseZero(in, ds);
      }
      store(p, p_row + c);
      store(ds, ds_row + c);
    }
    for (int64_t c = n; c < kBlock; c += lanes()) {
      store(hn::Zero(d), p_row + c);
      store(hn::Zero(d), ds_row + c);
    }
  }
}

constexpr float kLog2e = 1.44269504f;

// Masked scores count as 0 for `widest`, which tells whether all exponentials were in range.
template <bool kPartly>
HWY_INLINE V exp_row(const BlockMask& mask, int64_t r, V scales, const float* s, RowSums& sums,
                     bf16* p, V widest) {
  const hn::Rebind<uint32_t, D> du;
  const int64_t n = mask.columns[r / kRowGroup];
  V exact = hn::Zero(D()), rounded = exact;
  for (int64_t c = 0; c < n; c += lanes()) {
    V t = hn::Mul(load(s + c), scales);
    if (kPartly) t = hn::IfThenElseZero(columns_in(c, mask.begin[r], mask.end[r]), t);
    widest = hn::Max(widest, hn::Abs(t));
    V e = exp2_rough(t);
    if (kPartly) e = hn::IfThenElseZero(columns_in(c, mask.begin[r], mask.end[r]), e);
    exact = hn::Add(exact, e);
    const auto bits = hn::Add(hn::BitCast(du, e), hn::Set(du, 0x8000u));  // half away from zero
    e = hn::BitCast(D(), hn::And(bits, hn::Set(du, 0xffff0000u)));
    rounded = hn::Add(rounded, e);
    store(e, p + c);
  }
  store(hn::Add(load(sums.exact), exact), sums.exact);
  store(hn::Add(load(sums.rounded), rounded), sums.rounded);
  return widest;
}

bool exp_rows(const BlockMask& mask, int64_t rows, float scale, const float* s, RowSums* sums,
              bf16* p) {
  const D d;
  const V scales = hn::Set(d, scale * kLog2e);
  V widest = hn::Zero(d);
  for (int64_t r = 0; r < rows; ++r, s += kBlock, ++sums, p += kBlock) {
    const bool partly = mask.begin[r] > 0 || mask.end[r] < mask.columns[r / kRowGroup];
    widest = partly ? exp_row<true>(mask, r, scales, s, *sums, p, widest)
                    : exp_row<false>(mask, r, scales, s, *sums, p, widest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, widest)) <= kMaxBoundedScore * kLog2e;
}

// A row of the bf16 softmax gradient, and what its columns share.
struct GradientRow {
  int32_t begin, end;
  const float *s, *dp;
  V log_sum, mean;  // in units of the score and of dS
};

template <bool kPartly>
HWY_INLINE void gradient_pair(const GradientRow (&row)[2], int64_t n, float scale,
                              int64_t panel_stride, bf16* p_to, bf16* ds_to, bf16* ds_rows) {
  const D d;
  const V factor = hn::Set(d, scale * kLog2e), scales = hn::Set(d, scale);
  const V lowest = hn::Set(d, -126.0f);  // exp2_rough takes no less; P is next to nothing there
  for (int64_t c = 0; c < n; c += lanes()) {
    V p[2], ds[2];
    for (int i = 0; i < 2; ++i) {
      const V t = hn::MulSub(load(row[i].s + c), factor, row[i].log_sum);
      p[i] = exp2_rough(hn::Max(lowest, t));
      ds[i] = hn::Mul(p[i], hn::MulSub(load(row[i].dp + c), scales, row[i].mean));
      if (kPartly) {
        const auto in = columns_in(c, row[i].begin, row[i].end);
        p[i] = hn::IfThenElseZero(in, p[i]);
        ds[i] = hn::IfThenElseZero(in, ds[i]);
      }
      store(ds[i], ds_rows + i * kBlock + c);
    }
    const int64_t to = c / kPanelWidth * panel_stride + c % kPanelWidth * 2;
    store_pairs({p[0], p[1]}, p_to + to, Full());
    store_pairs({ds[0], ds[1]}, ds_to + to, Full());
  }
  // Products over rows read whole panels of columns.
  for (int64_t c = n; c < kBlock; c += lanes()) {
    const int64_t to = c / kPanelWidth * panel_stride + c % kPanelWidth * 2;
    store_pairs({hn::Zero(d), hn::Zero(d)}, p_to + to, Full());
    store_pairs({hn::Zero(d), hn::Zero(d)}, ds_to + to, Full());
  }
}

void softmax_gradient_pairs(const BlockMask& mask, int64_t rows, float scale, const float* lse,
                            const float* delta, int64_t stride, const float* s, const float* dp,
                            const PackedScores& to) {
  const int64_t panel_stride = (rows + 1) / 2 * 2 * kPanelWidth;  // elements; rows padded to pairs
  for (int64_t r = 0; r < rows; r += 2) {
    const int64_t n = mask.columns[r / kRowGroup];
    GradientRow row[2];
    bool partly = false;
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t at = std::min(r + i, rows - 1);  // a missing row reads the last, all masked
      row[i] = {r + i < rows ? mask.begin[at] : 0,
                r + i < rows ? mask.end[at] : 0,
                s + at * kBlock,
                dp + at * kBlock,
                set(lse[at * stride] * kLog2e),
                set(delta[at * stride] * scale)};
      partly = partly || row[i].begin > 0 || row[i].end < n;
    }
    bf16 *p_to = to.p + r * kPanelWidth, *ds_to = to.ds + r * kPanelWidth;
    partly
        ? gradient_pair<true>(row, n, scale, panel_stride, p_to, ds_to, to.ds_rows + r * kBlock)
        : gradient_pair<false>(row, n, scale, panel_stride, p_to, ds_to, to.ds_rows + r * kBlock);
  }
}

float sum_of_16(const float* x) {
  V total = load(x);
  for (int64_t i = lanes(); i < 16; i += lanes()) total = hn::Add(total, load(x + i));
  return sum_of_lanes(total);
}

template <typename T>
HWY_INLINE void scale_row(const float* x, float factor, int64_t n, T* y) {
  const V factors = hn::Set(D(), factor);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store(hn::Mul(load(x + i), factors), y + i);
  for (; i < n; ++i) y[i] = T(x[i] * factor);
}
void scale_row_f32(const float* x, float factor, int64_t n, float* y) {
  scale_row(x, factor, n, y);
}
void scale_row_bf16(const float* x, float factor, int64_t n, bf16* y) {
  scale_row(x, factor, n, y);
}

void add_row(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store(hn::Add(load(y + i), load(x + i)), y + i);
  for (; i < n; ++i) y[i] += x[i];
}

template <typename A, typename B>
HWY_INLINE float dot_row(const A* a, const B* b, int64_t n) {
  const D d;
  V total = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) total = hn::MulAdd(load(a + i), load(b + i), total);
  float sum = i > 0 ? hn::GetLane(hn::SumOfLanes(d, total)) : 0.0f;
  for (; i < n; ++i) sum += float(a[i]) * float(b[i]);
  return sum;
}
float dot_row_f32(const float* a, const float* b, int64_t n) {
  return dot_row(a, b, n);
}
float dot_row_bf16(const bf16* a, const bf16* b, int64_t n) {
  return dot_row(a, b, n);
}

template <int kQueries, typename T>
HWY_INLINE void scores_of(int64_t D_, const float* q, const T* k, int64_t stride, int64_t count,
                          float* s) {
  const D d;
  for (int64_t key = 0; key < count; ++key) {
    const T* row = k + key * stride;
    V total[kQueries];
    for (int i = 0; i < kQueries; ++i) total[i] = hn::Zero(d);
    int64_t c = 0;
    for (; c + lanes() <= D_; c += lanes()) {
      const V x = load(row + c);
      for (int i = 0; i < kQueries; ++i) total[i] = hn::MulAdd(load(q + i * D_ + c), x, total[i]);
    }
    for (int i = 0; i < kQueries; ++i) {
      float sum = hn::GetLane(hn::SumOfLanes(d, total[i]));
      for (int64_t rest = c; rest < D_; ++rest) sum += q[i * D_ + rest] * float(row[rest]);
      s[i * kBlock + key] = sum;
    }
  }
}

// Columns [c, c + kVectors vectors) of the weighted sum.
template <int kQueries, int kVectors, typename T>
HWY_INLINE void weighted_columns(int64_t c, const float* s, const T* v, int64_t stride,
                                 int64_t count, float* o, int64_t o_stride) {
  V total[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i)
    for (int n = 0; n < kVectors; ++n) total[i][n] = load(o + i * o_stride + c + n * lanes());
  for (int64_t key = 0; key < count; ++key) {
    V x[kVectors];
    for (int n = 0; n < kVectors; ++n) x[n] = load(v + key * stride + c + n * lanes());
    for (int i = 0; i < kQueries; ++i) {
      const V p = hn::Set(D(), s[i * kBlock + key]);
      for (int n = 0; n < kVectors; ++n) total[i][n] = hn::MulAdd(p, x[n], total[i][n]);
    }
  }
  for (int i = 0; i < kQueries; ++i)
    for (int n = 0; n < kVectors; ++n) store(total[i][n], o + i * o_stride + c + n * lanes());
}

template <int kQueries, typename T>
HWY_INLINE void weighted_sum_of(int64_t D_, const float* s, const T* v, int64_t stride,
                                int64_t count, float* o, int64_t o_stride) {
  constexpr int kVectors = kQueries == 4 ? 2 : 4;  // at most 8 sums, 4 values and a weight
  int64_t c = 0;
  for (; c + kVectors * lanes() <= D_; c += kVectors * lanes())
    weighted_columns<kQueries, kVectors>(c, s, v, stride, count, o, o_stride);
  for (; c + lanes() <= D_; c += lanes())
    weighted_columns<kQueries, 1>(c, s, v, stride, count, o, o_stride);
  for (; c < D_; ++c)
    for (int i = 0; i < kQueries; ++i)
      for (int64_t key = 0; key < count; ++key)
        o[i * o_stride + c] += s[i * kBlock + key] * float(v[key * stride + c]);
}

template <typename T>
HWY_INLINE void scores_any(int64_t num, int64_t D_, const float* q, const T* k, int64_t stride,
                           int64_t count, float* s) {
  if (num == 4) return scores_of<4>(D_, q, k, stride, count, s);
  if (num >= 2) scores_of<2>(D_, q, k, stride, count, s);
  if (num % 2) scores_of<1>(D_, q + (num - 1) * D_, k, stride, count, s + (num - 1) * kBlock);
}
void scores_f32(int64_t num, int64_t D_, const float* q, const float* k, int64_t stride,
                int64_t count, float* s) {
  scores_any(num, D_, q, k, stride, count, s);
}
void scores_bf16(int64_t num, int64_t D_, const float* q, const bf16* k, int64_t stride,
                 int64_t count, float* s) {
  scores_any(num, D_, q, k, stride, count, s);
}

template <typename T>
HWY_INLINE void weighted_sum_any(int64_t num, int64_t D_, const float* s, const T* v,
                                 int64_t stride, int64_t count, float* o, int64_t o_stride) {
  if (num == 4) return weighted_sum_of<4>(D_, s, v, stride, count, o, o_stride);
  if (num >= 2) weighted_sum_of<2>(D_, s, v, stride, count, o, o_stride);
  if (num % 2)
    weighted_sum_of<1>(D_, s + (num - 1) * kBlock, v, stride, count, o + (num - 1) * o_stride,
                       o_stride);
}
void weighted_sum_f32(int64_t num, int64_t D_, const float* s, const float* v, int64_t stride,
                      int64_t count, float* o, int64_t o_stride) {
  weighted_sum_any(num, D_, s, v, stride, count, o, o_stride);
}
void weighted_sum_bf16(int64_t num, int64_t D_, const float* s, const bf16* v, int64_t stride,
                       int64_t count, float* o, int64_t o_stride) {
  weighted_sum_any(num, D_, s, v, stride, count, o, o_stride);
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(softmax_rows);
HWY_EXPORT(softmax_gradient_rows);
HWY_EXPORT(softmax_gradient_pairs);
HWY_EXPORT(exp_rows);
HWY_EXPORT(sum_of_16);
HWY_EXPORT(scale_row_f32);
HWY_EXPORT(scale_row_bf16);
HWY_EXPORT(add_row);
HWY_EXPORT(dot_row_f32);
HWY_EXPORT(dot_row_bf16);
HWY_EXPORT(scores_f32);
HWY_EXPORT(scores_bf16);
HWY_EXPORT(weighted_sum_f32);
HWY_EXPORT(weighted_sum_bf16);

void softmax_block(const BlockMask& mask, int64_t rows, float scale, float* s, float* max,
                   float* sum, float* o, int64_t o_stride) {
  dispatch(HWY_DISPATCH_TABLE(softmax_rows))(mask, rows, scale, s, max, sum, o, o_stride);
}
void softmax_gradient_block(const BlockMask& mask, int64_t rows, float scale, const float* lse,
                            const float* delta, int64_t stride, float* s, float* dp) {
  dispatch(HWY_DISPATCH_TABLE(softmax_gradient_rows))(mask, rows, scale, lse, delta, stride, s, dp);
}
void softmax_gradient_block(const BlockMask& mask, int64_t rows, float scale, const float* lse,
                            const float* delta, int64_t stride, const float* s, const float* dp,
                            const PackedScores& to) {
  dispatch(HWY_DISPATCH_TABLE(softmax_gradient_pairs))(mask, rows, scale, lse, delta, stride, s, dp,
                                                       to);
}
bool exp_block(const BlockMask& mask, int64_t rows, float scale, const float* s, RowSums* sums,
               bf16* p) {
  return dispatch(HWY_DISPATCH_TABLE(exp_rows))(mask, rows, scale, s, sums, p);
}
float sum_lanes(const float* lanes) {
  return dispatch(HWY_DISPATCH_TABLE(sum_of_16))(lanes);
}
void scale_to(const float* x, float factor, int64_t n, float* y) {
  dispatch(HWY_DISPATCH_TABLE(scale_row_f32))(x, factor, n, y);
}
void scale_to(const float* x, float factor, int64_t n, bf16* y) {
  dispatch(HWY_DISPATCH_TABLE(scale_row_bf16))(x, factor, n, y);
}
void add_to(const float* x, int64_t n, float* y) {
  dispatch(HWY_DISPATCH_TABLE(add_row))(x, n, y);
}
float dot(const float* a, const float* b, int64_t n) {
  return dispatch(HWY_DISPATCH_TABLE(dot_row_f32))(a, b, n);
}
float dot(const bf16* a, const bf16* b, int64_t n) {
  return dispatch(HWY_DISPATCH_TABLE(dot_row_bf16))(a, b, n);
}
template <>
void row_scores(int64_t num, int64_t D, const float* q, const float* k, int64_t stride,
                int64_t count, float* s) {
  dispatch(HWY_DISPATCH_TABLE(scores_f32))(num, D, q, k, stride, count, s);
}
template <>
void row_scores(int64_t num, int64_t D, const float* q, const bf16* k, int64_t stride,
                int64_t count, float* s) {
  dispatch(HWY_DISPATCH_TABLE(scores_bf16))(num, D, q, k, stride, count, s);
}
template <>
void row_weighted_sum(int64_t num, int64_t D, const float* s, const float* v, int64_t stride,
                      int64_t count, float* o, int64_t o_stride) {
  dispatch(HWY_DISPATCH_TABLE(weighted_sum_f32))(num, D, s, v, stride, count, o, o_stride);
}
template <>
void row_weighted_sum(int64_t num, int64_t D, const float* s, const bf16* v, int64_t stride,
                      int64_t count, float* o, int64_t o_stride) {
  dispatch(HWY_DISPATCH_TABLE(weighted_sum_bf16))(num, D, s, v, stride, count, o, o_stride);
}

}  // namespace ashlar::kernels::cpu
#endif
