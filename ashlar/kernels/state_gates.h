// Gates of linear attention: the logarithm of the decay that each token applies to the state, and
// the factor on the value that it writes (recurrence.h).
//
//   GLA         log_decay = logsigmoid(x + bias) / 16                   of each key channel
//   delta rule  log_decay = -exp(A_log) softplus(x + dt_bias)           of each value head
//               beta      = sigmoid(b)
//
// Source   GLA, arXiv:2312.06635; gated DeltaNet, arXiv:2412.06464; Qwen3-Next's release.
// Shapes   T tokens, N channels.  GLA: x dx [T, N] (a strided Matrix), bias dbias [N], log_decay
//          [T, N].  Delta rule: ba dba [T, 2 H] = b | x (a strided Matrix), A_log dt_bias and their
//          gradients [H], log_decay beta [T, H].
// Types    F32 or F64; dx and dba also BF16 (inputs of products).
// Cost     10 flop an element of x or ba forward, 20 backward.  Bandwidth-bound.
// Numerics gradients of vectors: partial sums per block of 64 tokens, blocks added in order.
//          softplus and logsigmoid do not overflow, and are exact where sigmoid rounds to 0 or 1.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

// The divisor of GLA's log gates, with which gates start near 1.
inline constexpr double kGlaDivisor = 16.0;

void gla_gate_forward(const Context&, const Matrix& x_TN, const Tensor& bias_N,
                      const Tensor& log_decay_TN);

struct GlaGateBackward {
  Matrix x_TN;
  Tensor bias_N, dlog_decay_TN;
  Matrix dx_TN;    // filled
  Tensor dbias_N;  // added to
};
void gla_gate_backward(const Context&, const GlaGateBackward&);

struct DeltaGatesForward {
  Matrix ba_T2H;
  Tensor a_log_H, dt_bias_H;
  Tensor log_decay_TH, beta_TH;  // filled
};
void delta_gates_forward(const Context&, const DeltaGatesForward&);

struct DeltaGatesBackward {
  Matrix ba_T2H;
  Tensor a_log_H, dt_bias_H;
  Tensor dlog_decay_TH, dbeta_TH;
  Matrix dba_T2H;               // filled
  Tensor da_log_H, ddt_bias_H;  // added to
};
void delta_gates_backward(const Context&, const DeltaGatesBackward&);

}  // namespace ashlar::kernels
