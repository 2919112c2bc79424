// The gate on the output of attention, channel by channel, before the output projection.
//
//   y = att * sigmoid(gate)
//   datt = dy * sigmoid(gate),  dgate = dy * att * sigmoid(gate) * (1 - sigmoid(gate))
//
// Source   Qwen3-Next's release; Gated Attention, arXiv:2505.06708.
// Shapes   T tokens, C channels.  att y dy datt [T, C]; gate dgate: T rows of C columns of the
//          fused projection and of its gradient.
// Types    F32, F64 or BF16.
// Cost     5 flop an element forward, 9 backward; bytes: every element once.  Bandwidth-bound.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

// Fills y, which may be att itself.
void output_gate_forward(const Context&, const Tensor& att, const Matrix& gate, const Tensor& y);

struct OutputGateBackward {
  Tensor dy, att;
  Matrix gate;
  Tensor datt;   // filled; may be dy itself
  Matrix dgate;  // filled
};
void output_gate_backward(const Context&, const OutputGateBackward&);

}  // namespace ashlar::kernels
