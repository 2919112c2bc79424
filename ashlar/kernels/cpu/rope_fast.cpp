// How it works.  The arithmetic of rope.cpp on vectors along a head.  A head with a norm is read
// twice: for its statistic, and to be normed and rotated.  Backward rotates the gradient back into
// the task's scratch, where the norm reads it; without a norm it is written to the result directly.
#include "ashlar/kernels/cpu/rope_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/rope_fast.cpp"
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

const float* floats(const Cells<float>& cells, int64_t at) {
  return reinterpret_cast<const float*>(cells.data()) + at;
}

void copy_row(const Cells<float>& from, int64_t at, const Cells<float>& to, int64_t to_at,
              int64_t count) {
  for_lanes(count,
            [&](int64_t i, auto n) HWY_ATTR { store(load(from, at + i, n), to, to_at + i, n); });
}

void head_row(const HeadsArgs<float>& x, int64_t t, int64_t head) {
  const HeadOffsets p = head_offsets(x.s, t, head);
  const Cells<float>& hat = p.key ? x.khat : x.qhat;
  const auto own = [&](int64_t i, auto n) HWY_ATTR { return load(x.qkv, p.in_qkv + i, n); };
  const auto write = [&](V v, int64_t i, auto n) HWY_ATTR { store(v, hat, p.in_hat + i, n); };
  if (!x.q_norm) return rotate(x, t, false, own, write);
  V squares = set(0);
  for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
    const V v = own(i, n);
    squares = hn::MulAdd(v, v, squares);
  });
  const float rstd = 1.0f / std::sqrt(sum_of_lanes(squares) / float(x.s.D) + float(x.s.eps));
  (p.key ? x.rstd_k : x.rstd_q).set(p.rstd, rstd);
  const float* w = floats(p.key ? x.k_norm : x.q_norm, 0);
  const V scale = set(rstd), offset = set(float(x.s.weight_offset));
  const auto normed = [&](int64_t i, auto n) HWY_ATTR {
    return hn::Mul(hn::Add(offset, load(w + i, n)), hn::Mul(own(i, n), scale));
  };
  rotate(x, t, false, normed, write);
}

void heads_rows(const HeadsArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t KD = x.s.K * x.s.D, width = x.s.width(), values = x.s.values_begin();
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < x.s.N + x.s.K; ++head) head_row(x, t, head);
    copy_row(x.qkv, t * width + values, x.v, t * KD, KD);
  }
}

// Takes the head's turned gradient g through its norm; adds to dw.
void norm_gradient(const HeadsGradientArgs<float>& x, const HeadOffsets& p, const float* g,
                   float* dw) {
  const float* w = floats(p.key ? x.k_norm : x.q_norm, 0);
  const float rstd = (p.key ? x.rstd_k : x.rstd_q)[p.rstd];
  const V offset = set(float(x.s.weight_offset));
  const auto weight = [&](int64_t i, auto n) HWY_ATTR { return hn::Add(offset, load(w + i, n)); };
  V sum = set(0);
  for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
    sum = hn::MulAdd(hn::Mul(load(g + i, n), weight(i, n)), load(x.qkv, p.in_qkv + i, n), sum);
  });
  const V scale = set(rstd), mean = set(sum_of_lanes(sum) * rstd / float(x.s.D));
  for_lanes(x.s.D, [&](int64_t i, auto n) HWY_ATTR {
    const V own = load(g + i, n), normed = hn::Mul(load(x.qkv, p.in_qkv + i, n), scale);
    add_to(hn::Mul(own, normed), dw + i, n);
    const V across = hn::NegMulAdd(normed, mean, hn::Mul(own, weight(i, n)));
    store(hn::Mul(scale, across), x.dqkv, p.in_qkv + i, n);
  });
}

// Adds to dw [D]; g [D] is scratch.
void head_gradient(const HeadsGradientArgs<float>& x, int64_t t, int64_t head, float* dw,
                   float* g) {
  const HeadOffsets p = head_offsets(x.s, t, head);
  const float* dhat = floats(p.key ? x.dkhat : x.dqhat, p.in_hat);
  const auto read = [&](int64_t i, auto n) HWY_ATTR { return load(dhat, i, n); };
  if (!x.q_norm)
    return rotate(x, t, true, read,
                  [&](V v, int64_t i, auto n) HWY_ATTR { store(v, x.dqkv, p.in_qkv + i, n); });
  rotate(x, t, true, read, [&](V v, int64_t i, auto n) HWY_ATTR { store(v, g + i, n); });
  norm_gradient(x, p, g, dw);
}

void heads_gradient_rows(const HeadsGradientArgs<float>& x, int64_t begin, int64_t end,
                         float* partial) {
  const int64_t D = x.s.D, KD = x.s.K * D, width = x.s.width(), values = x.s.values_begin();
  float *dk_norm = partial + D, *g = x.q_norm ? partial + 2 * D : partial;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < x.s.N + x.s.K; ++head)
      head_gradient(x, t, head, head < x.s.N ? partial : dk_norm, g);
    copy_row(x.dv, t * KD, x.dqkv, t * width + values, KD);
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(heads_rows);
HWY_EXPORT(heads_gradient_rows);

void heads_rows_fast(const HeadsArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(heads_rows))(args, begin, end);
}
void heads_gradient_rows_fast(const HeadsGradientArgs<float>& args, int64_t begin, int64_t end,
                              float* partial) {
  dispatch(HWY_DISPATCH_TABLE(heads_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
