// Causal convolution of each channel over the last few tokens of its document, and SiLU.
//
//   y_t[c] = silu( sum_{i < w} W[c, i] x_{t - (w - 1) + i}[c] )      x is 0 before the document
//
// Source   Mamba, arXiv:2312.00752; gated DeltaNet, arXiv:2412.06464; Qwen3-Next's release.
// Shapes   x dx [T, C] (a strided Matrix: columns of a fused product); W dW [C, 1, w], 2 <= w <= 8;
//          y dy [T, C]; halo dhalo [num_halos, w - 1, C]: the rows before each segment that
//          continues a document, older first.  Rows from before the document are not read, and
//          their gradient is 0.
// Types    halo W, dhalo dW: F32 or F64, one type; x y dy dx: also BF16.
// Cost     (2 w + 4) T C flop forward, (6 w + 10) T C backward.  Bandwidth-bound.
// Numerics dW: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

struct ShortConvForward {
  const Sequence& sequence;
  Matrix x_TC;
  Tensor halo, w_C1W;
  Tensor y_TC;  // filled
};
void short_conv_forward(const Context&, const ShortConvForward&);

struct ShortConvBackward {
  const Sequence& sequence;
  Matrix x_TC;
  Tensor halo, w_C1W;
  Tensor dy_TC;
  Matrix dx_TC;  // filled, without the part of tokens behind a segment, which is in their dhalo
  Tensor dhalo;  // filled
  Tensor dw;     // added to
};
void short_conv_backward(const Context&, const ShortConvBackward&);

}  // namespace ashlar::kernels
