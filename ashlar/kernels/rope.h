// Queries and keys of softmax attention, from the fused projection to the inputs of attention: QK
// norm (Qwen3) or none, RoPE.  CCA has its own function (qk.h), with the same table.
//
//   qhat_h = rope( norm_q(q_h) ),  khat_j = rope( norm_k(k_j) ),  v unchanged
//   norm(x) = (c + w) * x * rstd,  rstd = (mean(x^2) + eps)^(-1/2) over a head, c: weight_offset,
//             0 or 1;  norm(x) = x without w
//
// RoPE rotates pairs (i, i + rho/2), i < rho/2, by position * frequency_i, where position counts
// from the start of the token's document; dims from rho on are unchanged.
//
//   frequency_i = theta^(-2i/rho), then scaled (RopeScaling)
//
// Source   RoPE: Su et al. 2021, arXiv:2104.09864.  Scaling: positions interpolated, Chen et al.
//          2023, arXiv:2306.15595; YaRN, arXiv:2309.00071; Llama 3.1, arXiv:2407.21783, its
//          release; all as in transformers 5.  QK norm: Qwen3, arXiv:2505.09388; with an
//          offset of 1: Qwen3-Next.
// Shapes   T tokens, N query heads, K key heads, D head dim, P positions.  qkv dqkv [T, (N+2K) D] =
//          q | k | v, followed by N D more columns if the shape is gated, which are neither read
//          nor written here (output_gate.h); qhat dqhat [T, N*D]; khat dkhat v dv [T, K*D]; weights
//          of the norms and their gradients [D]; rstd_q [T, N], rstd_k [T, K]; table [P, rho].
// Types    table, weights, rstd, dqhat dkhat dv: F32 or F64, one type; qkv, qhat khat v and dqkv:
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

// Scaling for contexts longer than the P0 positions of the original training.  With f =
// frequency_i:
//
//   linear    f / factor
//   dynamic   of theta (factor L / P0 - (factor - 1))^(rho / (rho - 2)) instead of theta, where L,
//             the length of the sequence, is above P0; else f
//   yarn      (1 - m) f + m f / factor, where m rises from 0 to 1 as i goes from c(beta_fast) to
//             c(beta_slow), c(n) = rho ln(P0 / (2 pi n)) / (2 ln theta), rounded outwards with
//             truncate.  cos and sin are multiplied by attention_factor; 0: 1 + 0.1 ln(factor)
//   llama3    f / factor where its wavelength w = 2 pi / f is above P0 / low; f where w is below
//             P0 / high; between (1 - s) f / factor + s f, s = (P0 / w - low) / (high - low)
struct RopeScaling {
  enum class Type : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };
  Type type = Type::kNone;
  double factor = 1.0;
  int64_t original_positions = 0;  // P0
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  double beta_fast = 32.0, beta_slow = 1.0, attention_factor = 0.0;
  bool truncate = true;
};

struct Rope {
  double theta;
  RopeScaling scaling{};
  // For type dynamic: the number of tokens that a sequence starts with.  Row p is for a sequence of
  // that length, or of p + 1 if it has grown further token by token.  0: the rows of the table.
  int64_t length = 0;
};

// Fills cos and sin of position * frequency: [positions, rho] = cos (rho/2) | sin (rho/2).  Runs
// once per run and is not recorded.
void rope_table(const Context&, const Rope&, const Tensor& table_PR);

// The heads of this rank: all, or a share of a model's (tensor parallelism).
struct HeadsShape {
  int64_t N, K, D;
  int64_t rotary_dim;  // rho, even; 0: no rotation, the table is not read and may be absent
  double eps = 0;      // eps of the norms
  double weight_offset = 0;
  bool gated = false;
  int64_t values_begin() const { return (N + K) * D; }  // columns of qkv
  int64_t gate_begin() const { return (N + 2 * K) * D; }
  int64_t width() const { return gate_begin() + (gated ? N * D : 0); }
};

// The weights of both norms, their rstd and their gradients are all present, or all absent.
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
  Tensor qkv = {};  // without norms it is not read and may be absent
  Tensor q_norm_D = {}, k_norm_D = {};
  Tensor rstd_q_TN = {}, rstd_k_TK = {};
  Tensor dqhat, dkhat, dv;
  Tensor dqkv;                            // filled, except for a gate's columns
  Tensor dq_norm_D = {}, dk_norm_D = {};  // added to
};
void heads_backward(const Context&, const HeadsBackward&);

}  // namespace ashlar::kernels
