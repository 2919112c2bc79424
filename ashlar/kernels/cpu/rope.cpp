// How it works.  The plain arithmetic, token by token and head by head.  Backward of a head x, with
// g the gradient of its hat, turned back by the angles of RoPE:
//
//   dx = rstd (w g - x rstd mean(w g x rstd)),  dw += g x rstd      with a norm
//   dx = g                                                           without
//
// where w is the weight with its offset.
#include "ashlar/kernels/rope.h"

#include <cmath>

#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/rope_args.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
void head_row(const HeadsArgs<T>& x, int64_t t, int64_t head) {
  const int64_t D = x.s.D, position = x.sequence->position_T()[size_t(t)];
  const HeadOffsets p = head_offsets(x.s, t, head);
  const Cells<T>&w = p.key ? x.k_norm : x.q_norm, &hat = p.key ? x.khat : x.qhat;
  T rstd = 1;
  if (w) {
    T sum = 0;
    for (int64_t i = 0; i < D; ++i) sum += x.qkv[p.in_qkv + i] * x.qkv[p.in_qkv + i];
    rstd = T(1) / std::sqrt(sum / T(D) + T(x.s.eps));
    (p.key ? x.rstd_k : x.rstd_q).set(p.rstd, rstd);
  }
  const auto normed = [&](int64_t i) {
    const T value = x.qkv[p.in_qkv + i];
    return w ? (T(x.s.weight_offset) + w[i]) * value * rstd : value;
  };
  for (int64_t i = 0; i < D; ++i)
    hat.set(p.in_hat + i, rotated(x.rope, position, x.s.rotary_dim, i, T(1), normed));
}

template <typename T>
void heads_rows(const HeadsArgs<T>& x, int64_t begin, int64_t end) {
  const int64_t KD = x.s.K * x.s.D, width = x.s.width(), values = x.s.values_begin();
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < x.s.N + x.s.K; ++head) head_row(x, t, head);
    for (int64_t i = 0; i < KD; ++i) x.v.set(t * KD + i, x.qkv[t * width + values + i]);
  }
}

// Adds to dw [D]; g [D] is scratch.
template <typename T>
void head_gradient(const HeadsGradientArgs<T>& x, int64_t t, int64_t head, T* dw, T* g) {
  const int64_t D = x.s.D, position = x.sequence->position_T()[size_t(t)];
  const HeadOffsets p = head_offsets(x.s, t, head);
  const Cells<T>&w = p.key ? x.k_norm : x.q_norm, &dhat = p.key ? x.dkhat : x.dqhat;
  for (int64_t i = 0; i < D; ++i)
    g[i] = rotated(x.rope, position, x.s.rotary_dim, i, T(-1),
                   [&](int64_t k) { return dhat[p.in_hat + k]; });
  if (w) {
    const T rstd = (p.key ? x.rstd_k : x.rstd_q)[p.rstd];
    const auto weight = [&](int64_t i) { return T(x.s.weight_offset) + w[i]; };
    T mean = 0;  // of w g x rstd
    for (int64_t i = 0; i < D; ++i) mean += weight(i) * g[i] * x.qkv[p.in_qkv + i] * rstd / T(D);
    for (int64_t i = 0; i < D; ++i) {
      const T normed = x.qkv[p.in_qkv + i] * rstd;
      dw[i] += g[i] * normed;
      g[i] = rstd * (weight(i) * g[i] - normed * mean);
    }
  }
  for (int64_t i = 0; i < D; ++i) x.dqkv.set(p.in_qkv + i, g[i]);
}

template <typename T>
void heads_gradient_rows(const HeadsGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  const int64_t D = x.s.D, KD = x.s.K * D, width = x.s.width(), values = x.s.values_begin();
  T *dk_norm = partial + D, *g = x.q_norm ? partial + 2 * D : partial;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < x.s.N + x.s.K; ++head)
      head_gradient(x, t, head, head < x.s.N ? partial : dk_norm, g);
    for (int64_t i = 0; i < KD; ++i) x.dqkv.set(t * width + values + i, x.dv[t * KD + i]);
  }
}

}  // namespace

void heads_forward(const Context& ctx, const HeadsForward& x) {
  with_real(x.qkv.dtype, [&]<typename Real>(Real) {
    const HeadsArgs<Real> args{.s = x.shape,
                               .sequence = &x.sequence,
                               .rope = x.rope_PR,
                               .qkv = x.qkv,
                               .q_norm = x.q_norm_D,
                               .k_norm = x.k_norm_D,
                               .rstd_q = x.rstd_q_TN,
                               .rstd_k = x.rstd_k_TK,
                               .qhat = x.qhat,
                               .khat = x.khat,
                               .v = x.v};
    run_rows(ctx, x.sequence.num_tokens(), args, heads_rows_fast, heads_rows<Real>);
  });
}

void heads_backward(const Context& ctx, const HeadsBackward& x) {
  const Tensor none{.dtype = x.dqhat.dtype};  // without norms no gradients, but scratch
  const auto gradients = {x.dq_norm_D ? x.dq_norm_D : none, x.dk_norm_D ? x.dk_norm_D : none};
  with_real(x.dqhat.dtype, [&]<typename Real>(Real) {
    const HeadsGradientArgs<Real> args{.s = x.shape,
                                       .sequence = &x.sequence,
                                       .rope = x.rope_PR,
                                       .qkv = x.qkv,
                                       .q_norm = x.q_norm_D,
                                       .k_norm = x.k_norm_D,
                                       .rstd_q = x.rstd_q_TN,
                                       .rstd_k = x.rstd_k_TK,
                                       .dqhat = x.dqhat,
                                       .dkhat = x.dkhat,
                                       .dv = x.dv,
                                       .dqkv = x.dqkv};
    run_summing_rows(ctx, x.sequence.num_tokens(), gradients, args, heads_gradient_rows_fast,
                     heads_gradient_rows<Real>, x.shape.D);
  });
}

}  // namespace ashlar::kernels::cpu
