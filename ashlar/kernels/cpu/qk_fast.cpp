// How it works.  The arithmetic of qk.cpp on vectors along a head.  A head is described by its own
// channels and those of its partners in the mean (Head), so that queries and keys share one path.
// X of one head at a time is on the stack, in fp32; only `mixed`, which makes it, depends on the
// type Z of qkv and y.  Backward keeps dX of all heads of a token in the task's scratch, because
// the mean couples them.
#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/cpu/qk_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/qk_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/rope-inl.h"
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename T = float>
const T* elements(const Cells<float>& cells, int64_t at) {
  return reinterpret_cast<const T*>(cells.data()) + at;
}

// X of a head, and the sums of its squares by lane.
struct Mixed {
  HWY_ALIGN float x[kMaxHeadDim];
  V squares;
};

// A head and its partners, with which it is averaged: of a query its key; of a key its queries, or
// (`summed`) one row that is their sum over all ranks.
struct Head {
  int64_t channel, partner, num_partners;  // first channels
  bool key;
  int64_t index;  // among the queries or the keys
  float share;    // the weight of each partner in their mean
};
Head head_of(const QkShape& s, int64_t head, bool summed) {
  const int64_t local = s.N / s.K, j = head - s.N;
  if (j < 0) return {head * s.D, (s.N + head / local) * s.D, 1, false, head, 1};
  return {head * s.D, j * local * s.D, summed ? 1 : local, true, j, 1.0f / float(s.G())};
}

// The first partner of a head of token t, in the token's row of all dX or among the sums.
const float* partners_of(const QkShape& s, const Head& head, int64_t t, const float* row,
                         const Cells<float>& sums) {
  return head.key && sums ? elements(sums, (t * s.K + head.index) * s.D) : row + head.partner;
}

template <typename T, typename Count>
HWY_INLINE V sum_of_heads(const T* first, int64_t num_heads, int64_t D, int64_t i, Count n) {
  V sum = load(first + i, n);
  for (int64_t k = 1; k < num_heads; ++k) sum = hn::Add(sum, load(first + k * D + i, n));
  return sum;
}

// Q_h or K_j before the norm, from rows z and y of the head's own channels and `count` partners.
template <typename Z, typename P>
HWY_INLINE void mix(const Head& head, int64_t D, const Z* z, const P* partners, int64_t count,
                    const Z* y, const float* bias, Mixed& to) {
  to.squares = set(0);
  for_lanes(D, [&](int64_t i, auto n) HWY_ATTR {
    const V others = sum_of_heads(partners, count, D, i, n);
    const V mean = hn::MulAdd(others, set(head.share), load(z, i, n));
    const V conv = hn::Add(load(y, i, n), load(bias + i, n));
    const V v = hn::MulAdd(mean, set(0.5f), conv);
    store(v, to.x + i, n);
    to.squares = hn::MulAdd(v, v, to.squares);
  });
}

template <typename Z, typename Args>
HWY_INLINE void mixed(const Args& x, const Head& head, int64_t t, Mixed& to) {
  const int64_t D = x.s.D;
  const Z* row = elements<Z>(x.qkv, t * (x.s.C() + x.s.K * D));
  const Z* y = elements<Z>(x.y, t * x.s.C() + head.channel);
  const float* bias = elements(x.b1, head.channel);
  if (head.key && x.q_sum) {
    const float* sum = elements(x.q_sum, (t * x.s.K + head.index) * D);
    return mix(head, D, row + head.channel, sum, 1, y, bias, to);
  }
  mix(head, D, row + head.channel, row + head.partner, head.num_partners, y, bias, to);
}

template <typename Z>
void head_row(const QkArgs<float>& x, const Head& head, int64_t t) {
  const int64_t D = x.s.D;
  Mixed own;
  mixed<Z>(x, head, t, own);
  const float norm = std::sqrt(sum_of_lanes(own.squares) + float(x.s.eps));
  const V scale = set(std::sqrt(float(D)) / norm * (head.key ? x.tau[head.index] : 1.0f));
  const Cells<float>& hat = head.key ? x.khat : x.qhat;
  const int64_t heads = head.key ? x.s.K : x.s.N, to = (t * heads + head.index) * D;
  (head.key ? x.n_k : x.n_q).set(t * heads + head.index, norm);
  rotate(
      x, t, false, [&](int64_t i, auto n) HWY_ATTR { return hn::Mul(scale, load(own.x + i, n)); },
      [&](V v, int64_t i, auto n) HWY_ATTR { store(v, hat, to + i, n); });
}

// to = from, or 0 where there is none.
void copy_row(const Cells<float>& from, int64_t at, const Cells<float>& to, int64_t to_at,
              int64_t count) {
  for_lanes(count, [&](int64_t i, auto n) HWY_ATTR {
    store(from ? load(from, at + i, n) : set(0), to, to_at + i, n);
  });
}

void value_row(const QkArgs<float>& x, int64_t t) {
  const int64_t KD = x.s.K * x.s.D, delayed = x.s.num_delayed(), current = KD - delayed;
  const int64_t width = x.s.C() + KD, from = t * width + x.s.C(), to = t * KD;
  const DelayedNeighbours p = delayed_neighbours_of(*x.sequence, t);
  copy_row(x.qkv, from, x.v, to, current);
  if (!p.first)
    copy_row(x.qkv, from - width + current, x.v, to + current, delayed);
  else
    copy_row(p.halo >= 0 ? x.halo_vd : Cells<float>(), p.halo * delayed, x.v, to + current,
             delayed);
}

template <typename Z>
void qk_rows_of(const QkArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < x.s.N + x.s.K; ++h) head_row<Z>(x, head_of(x.s, h, bool(x.q_sum)), t);
    value_row(x, t);
  }
}

// Puts dX of one head into dx; returns the head's share of dtau, which counts for keys.
template <typename Z>
HWY_INLINE float head_gradient(const QkGradientArgs<float>& x, const Head& head, int64_t t,
                               float* dx) {
  const int64_t D = x.s.D;
  const int64_t heads = head.key ? x.s.K : x.s.N, row = t * heads + head.index;
  const float* g = elements(head.key ? x.dkhat : x.dqhat, row * D);
  Mixed own;
  mixed<Z>(x, head, t, own);
  const float norm = (head.key ? x.n_k : x.n_q)[row], root = std::sqrt(float(D));
  rotate(
      x, t, true, [&](int64_t i, auto n) HWY_ATTR { return load(g, i, n); },
      [&](V v, int64_t i, auto n) HWY_ATTR { store(v, dx + i, n); });
  V sum = set(0);
  for_lanes(D, [&](int64_t i, auto n)
                   HWY_ATTR { sum = hn::MulAdd(load(dx + i, n), load(own.x + i, n), sum); });
  const float along = sum_of_lanes(sum) / norm;  // <g, X / n>
  const V scale = set(root / norm * (head.key ? x.tau[head.index] : 1.0f)),
          back = set(along / norm);
  for_lanes(D, [&](int64_t i, auto n) HWY_ATTR {
    const V across = hn::NegMulAdd(load(own.x + i, n), back, load(dx + i, n));
    store(hn::Mul(scale, across), dx + i, n);
  });
  return root * along;
}

// dz of one head: half its own dX, and its share of the dX of its partners.
void mean_gradient(const QkGradientArgs<float>& x, const Head& head, int64_t t, const float* dx) {
  const int64_t D = x.s.D, to = t * (x.s.C() + x.s.K * D) + head.channel;
  const V share = set(head.key ? 0.5f : 0.5f / float(x.s.G()));
  const float* partners = partners_of(x.s, head, t, dx, x.dq_sum);
  for_lanes(D, [&](int64_t i, auto n) HWY_ATTR {
    const V others = sum_of_heads(partners, head.num_partners, D, i, n);
    const V own = hn::Mul(set(0.5f), load(dx + head.channel + i, n));
    store(hn::MulAdd(others, share, own), x.dqkv, to + i, n);
  });
}

void value_gradient(const QkGradientArgs<float>& x, int64_t t) {
  const int64_t KD = x.s.K * x.s.D, delayed = x.s.num_delayed(), current = KD - delayed;
  const int64_t to = t * (x.s.C() + KD) + x.s.C(), from = t * KD;
  const DelayedNeighbours p = delayed_neighbours_of(*x.sequence, t);
  copy_row(x.dv, from, x.dqkv, to, current);
  copy_row(p.last ? Cells<float>() : x.dv, from + KD + current, x.dqkv, to + current, delayed);
  if (p.first && p.halo >= 0) copy_row(x.dv, from + current, x.dhalo_vd, p.halo * delayed, delayed);
}

template <typename Z>
void qk_gradient_rows_of(const QkGradientArgs<float>& x, int64_t begin, int64_t end,
                         float* partial) {
  const int64_t C = x.s.C(), heads = x.s.N + x.s.K;
  float *dtau = partial, *db1 = partial + x.s.K, *dx = db1 + C;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const Head head = head_of(x.s, h, bool(x.dq_sum));
      const float dtau_share = head_gradient<Z>(x, head, t, dx + head.channel);
      if (head.key) dtau[head.index] += dtau_share;
    }
    for (int64_t h = 0; h < heads; ++h) mean_gradient(x, head_of(x.s, h, bool(x.dq_sum)), t, dx);
    for_lanes(C, [&](int64_t i, auto n) HWY_ATTR {
      const V v = load(dx + i, n);
      add_to(v, db1 + i, n);
      store(v, x.dy, t * C + i, n);
    });
    value_gradient(x, t);
  }
}

template <typename Z>
void query_sum_rows_of(const QuerySumArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t D = x.s.D, local = x.s.N / x.s.K;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t j = 0; j < x.s.K; ++j) {
      const Z* first = elements<Z>(x.qkv, t * (x.s.C() + x.s.K * D) + j * local * D);
      for_lanes(D, [&](int64_t i, auto n) HWY_ATTR {
        store(sum_of_heads(first, local, D, i, n), x.q_sum, (t * x.s.K + j) * D + i, n);
      });
    }
}

template <typename Z>
void query_gradient_sum_rows_of(const QkGradientArgs<float>& x, int64_t begin, int64_t end,
                                float* dx) {
  const int64_t D = x.s.D, local = x.s.N / x.s.K;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < x.s.N; ++h) {
      head_gradient<Z>(x, head_of(x.s, h, false), t, dx);
      const bool first = h % local == 0;
      const int64_t to = (t * x.s.K + h / local) * D;
      for_lanes(D, [&](int64_t i, auto n) HWY_ATTR {
        const V v = load(dx + i, n);
        store(first ? v : hn::Add(load(x.dq_sum, to + i, n), v), x.dq_sum, to + i, n);
      });
    }
}

bool is_bf16(const Cells<float>& cells) {
  return cells.dtype() == DType::kBF16;
}

void qk_rows(const QkArgs<float>& x, int64_t begin, int64_t end) {
  (is_bf16(x.qkv) ? qk_rows_of<bf16> : qk_rows_of<float>)(x, begin, end);
}
void qk_gradient_rows(const QkGradientArgs<float>& x, int64_t begin, int64_t end, float* partial) {
  (is_bf16(x.qkv) ? qk_gradient_rows_of<bf16> : qk_gradient_rows_of<float>)(x, begin, end, partial);
}
void query_sum_rows(const QuerySumArgs<float>& x, int64_t begin, int64_t end) {
  (is_bf16(x.qkv) ? query_sum_rows_of<bf16> : query_sum_rows_of<float>)(x, begin, end);
}
void query_gradient_sum_rows(const QkGradientArgs<float>& x, int64_t begin, int64_t end,
                             float* dx) {
  (is_bf16(x.qkv) ? query_gradient_sum_rows_of<bf16> : query_gradient_sum_rows_of<float>)(x, begin,
                                                                                          end, dx);
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(qk_rows);
HWY_EXPORT(qk_gradient_rows);
HWY_EXPORT(query_sum_rows);
HWY_EXPORT(query_gradient_sum_rows);

void qk_rows_fast(const QkArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(qk_rows))(args, begin, end);
}
void qk_gradient_rows_fast(const QkGradientArgs<float>& args, int64_t begin, int64_t end,
                           float* partial) {
  dispatch(HWY_DISPATCH_TABLE(qk_gradient_rows))(args, begin, end, partial);
}

void qk_query_sum_rows_fast(const QuerySumArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(query_sum_rows))(args, begin, end);
}
void qk_query_gradient_sum_rows_fast(const QkGradientArgs<float>& args, int64_t begin, int64_t end,
                                     float* partial) {
  dispatch(HWY_DISPATCH_TABLE(query_gradient_sum_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
