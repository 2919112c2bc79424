// Queries and keys of softmax attention, from the fused projection to what attention reads: QK norm
// (Qwen3) or none, RoPE.  CCA has its own (qk.h), with the same table.
//
//   qhat_h = rope( norm_q(q_h) ),  khat_j = rope( norm_k(k_j) ),  v as it is
//   norm(x) = (c + w) * x * rstd,  rstd = (mean(x^2) + eps)^(-1/2) over a head, c: weight_offset,
//             0 or 1;  norm(x) = x without w
//
// RoPE turns pairs (i, i + rho/2), i < rho/2, by position * frequency_i, where position counts from
// the start of the token's document; dims from rho on stay.
//
//   frequency_i = theta^(-2i/rho), then scaled (RopeScaling)
//
// Source   RoPE: Su et al. 2021, arXiv:2104.09864.  Scaling: Llama 3.1, arXiv:2407.21783, its
//          release.  QK norm: Qwen3, arXiv:2505.09388; with an offset of 1: Qwen3-Next.
// Shapes   T tokens, N query heads, K key heads, D head dim, P positions.  qkv dqkv [T, (N+2K) D] =
//          q | k | v, and behind them N D columns more where the shape is gated, which are neither
//          read nor written here (output_gate.h); qhat dqhat [T, N*D]; khat dkhat v dv [T, K*D];
//          weights of the norms and their gradients [D]; rstd_q [T, N], rstd_k [T, K]; table
//          [P, rho].
// Types    qkv, table, weights, rstd, dqhat dkhat dv: F32 or F64, one type; qhat khat v and dqkv:
//          also BF16.
// Cost     per element of q and k 3 flop if it is rotated, and with norms 4 forward, 11 backward;
//          bytes: every tensor once.  Bandwidth-bound.
// Numerics statistics in fp32; gradients of the norms' weights: partial sums per block of 64
//          tokens, blocks added in order.  cos and sin are computed in fp64 and kept in fp32 (fp64
//          in the fp64 run).
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

// For contexts longer than those of the first training, as Llama 3 states it.  Of a frequency whose
// wavelength 2 pi / frequency is w positions:
//
//   w > original / low     divided by factor
//   w < original / high    stays
//   between                (1 - s) frequency / factor + s frequency,
//                          s = (original / w - low) / (high - low)
struct RopeScaling {
  double factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_positions = 0;  // 0: no scaling
};

// cos and sin of position * frequency: [positions, rho] = cos (rho/2) | sin (rho/2).  Filled once a
// run, hence not recorded.
void rope_table(const Context&, double theta, int64_t rotary_dim, const RopeScaling&,
                const Tensor& table_PR);
void rope_table(const Context&, double theta, int64_t rotary_dim, const Tensor& table_PR);

// The heads at hand: all, or a share of a model's (tensor parallelism).
struct HeadsShape {
  int64_t N, K, D;
  int64_t rotary_dim;  // rho, even; 0: no rotation, the table is not read and may be absent
  double eps = 0;      // of the norms
  double weight_offset = 0;
  bool gated = false;
  int64_t values_begin() const { return (N + K) * D; }  // columns of qkv
  int64_t gate_begin() const { return (N + 2 * K) * D; }
  int64_t width() const { return gate_begin() + (gated ? N * D : 0); }
};

// The weights of both norms are present, with what belongs to them (rstd, gradients), or none.
struct HeadsForward {
  HeadsShape shape;
  const Sequence& sequence;
  Tensor rope_PR = {};
  Tensor qkv;
  Tensor q_norm_D = {}, k_norm_D = {};
  Tensor qhat, khat, v;                   // filled
  Tensor rstd_q_TN = {}, rstd_k_TK = {};  // filled
};
void heads_forward(const Context&, const HeadsForward&);

struct HeadsBackward {
  HeadsShape shape;
  const Sequence& sequence;
  Tensor rope_PR = {};
  Tensor qkv = {};  // not read without norms, where it may be absent
  Tensor q_norm_D = {}, k_norm_D = {};
  Tensor rstd_q_TN = {}, rstd_k_TK = {};
  Tensor dqhat, dkhat, dv;
  Tensor dqkv;                            // filled, but for a gate's columns
  Tensor dq_norm_D = {}, dk_norm_D = {};  // added to
};
void heads_backward(const Context&, const HeadsBackward&);

}  // namespace ashlar::kernels
