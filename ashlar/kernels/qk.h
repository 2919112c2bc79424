// CCA between convolutions and attention: QK mean, QK norm, temperature, partial RoPE, delayed
// values.
//
//   Q_h    = y[q,h] + b1[q,h] + (q_h + k_j(h)) / 2
//   K_j    = y[k,j] + b1[k,j] + (k_j + mean_{h of j} q_h) / 2
//   qhat_h = rope( sqrt(d) Q_h / n ), khat_j = rope( tau_j sqrt(d) K_j / n ), n = sqrt(|X|^2 + eps)
//   v_t    = [vc_t ; vd_{t-1}] flat, vd before the document's start is 0
//
// rope turns pairs (i, i + rho/2), i < rho/2, by the angles of rope_table; see rope.h.
//
// Source   arXiv 2510.04476 and 2605.05365 (linear temperature); ZAYA1 release.
// Shapes   T tokens, N query heads, K kv heads, D head dim, C = (N+K) D.
//          qkv, dqkv: [T, C + K*D] = q | k | vc | vd, before the convolutions; y dy [T, C] (grouped
//          convolution without its bias b1 [C]); qhat dqhat [T, N*D]; khat dkhat v dv [T, K*D]; tau
//          [K]; n_q [T, N]; n_k [T, K]; halo_vd dhalo_vd [num_halos, delayed], delayed = K*D/2 in
//          a whole model; q_sum dq_sum [T, K*D].
// Types    F32 or F64, one type; qhat khat v dqkv dy, and qkv y of one type: also BF16.
// Cost     about 14*T*C flop forward, 30*T*C backward; bandwidth-bound.
// Numerics dtau, db1: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/rope.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

// The heads of this rank: all, or a share of a model's (tensor parallelism).
struct QkShape {
  int64_t N, K, D;
  int64_t rotary_dim;    // rho, even
  double eps;            // guard under the root
  int64_t group = 0;     // query heads of the whole model per key head; 0: N / K
  int64_t delayed = -1;  // number of the K*D value columns that are vd, the last ones; -1: half
  int64_t C() const { return (N + K) * D; }
  int64_t G() const { return group > 0 ? group : N / K; }
  int64_t num_delayed() const { return delayed >= 0 ? delayed : K * D / 2; }
};

// If other ranks hold query heads of these key heads (G() is not N / K), these functions compute
// sums over a key head's local queries, which the caller adds up over the ranks: q_sum before
// qk_forward, dq_sum before qk_backward.  Without such ranks both are absent.
//   q_sum_j = sum_h q_h;  dq_sum_j = sum_h dQ_h
void qk_query_sums(const Context&, const QkShape&, const Tensor& qkv, const Tensor& q_sum_TKD);
struct QkQueryGradientSums {
  QkShape shape;
  const Sequence& sequence;
  Tensor rope_PR, qkv, y_TC, b1_C, n_q_TN, dqhat;
  Tensor dq_sum_TKD;  // filled
};
void qk_query_gradient_sums(const Context&, const QkQueryGradientSums&);

struct QkForward {
  QkShape shape;
  const Sequence& sequence;
  Tensor rope_PR, qkv, y_TC, b1_C, tau_K, halo_vd;
  Tensor q_sum_TKD = {};
  Tensor qhat, khat, v, n_q_TN, n_k_TK;  // filled
};
void qk_forward(const Context&, const QkForward&);

struct QkBackward {
  QkShape shape;
  const Sequence& sequence;
  Tensor rope_PR, qkv, y_TC, b1_C, tau_K, n_q_TN, n_k_TK;
  Tensor q_sum_TKD = {};
  Tensor dqhat, dkhat, dv;
  Tensor dq_sum_TKD = {};
  Tensor dy_TC, dqkv, dhalo_vd;  // filled; dqkv in all four parts, the mean's share in q and k
  Tensor dtau_K, db1_C;          // added to
};
void qk_backward(const Context&, const QkBackward&);

}  // namespace ashlar::kernels
