// The depthwise half of CCA's two causal convolutions, and the columns of the grouped half.
//
//   u_t[c]      = b0[c] + w0[c,0] z_{t-1}[c] + w0[c,1] z_t[c]    z is 0 before the document's start
//   columns_t   = (u_{t-1}[c], u_t[c]) interleaved: column 2c is tap 0, 2c+1 is tap 1
//
// At the first token of a document u_{t-1} is b0, not 0: the sequence is padded once, before the
// first convolution, so the depthwise bias leaks into the first grouped window.  The grouped
// convolution is then blockdiag_linear_forward (linear.h) over columns with w1 [C, d, 2] read as
// [groups, d, 2d], plus b1.
//
// Source   Compressed Convolutional Attention, arXiv 2510.04476; ZAYA1 release.
// Shapes   z, dz: [T, C] (a strided Matrix: columns of the fused projection); w0 dw0 [C, 1, 2]; b0
//          db0 [C]; columns dcolumns [T, 2C]; halo_z dhalo_z [num_halos, 2, C]: the two z columns
//          (older first) before each segment that continues a document.
// Types    F32 or F64; z, dz, columns and dcolumns also BF16.
// Cost     6*T*C flop forward, 14*T*C backward.
// Numerics dw0, db0: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

struct ConvColumnsForward {
  const Sequence& sequence;
  Matrix z_TC;
  Tensor halo_z, w0_C2, b0_C;
  Tensor columns;  // filled
};
void conv_columns_forward(const Context&, const ConvColumnsForward&);

struct ConvColumnsBackward {
  const Sequence& sequence;
  Tensor dcolumns;
  Matrix z_TC;
  Tensor halo_z, w0_C2, b0_C;
  Matrix dz_TC;          // added to
  Tensor dhalo_z;        // filled
  Tensor dw0_C2, db0_C;  // added to
};
void conv_columns_backward(const Context&, const ConvColumnsBackward&);

}  // namespace ashlar::kernels
