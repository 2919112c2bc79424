// The bias of a projection: one vector added to every row.
//
//   y[t, n] += b[n];   db[n] += sum over t of dy[t, n]
//
// Shapes   b db [N]; y dy: T rows of N columns, possibly columns of a fused product.
// Types    b db: F32 or F64; y dy: also BF16.
// Cost     1 flop an element; bytes: every element of y twice, of dy once.  Bandwidth-bound.
// Numerics db: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

void bias_forward(const Context&, const Tensor& b_N, const Matrix& y_TN);
void bias_backward(const Context&, const Matrix& dy_TN, const Tensor& db_N);  // added to

}  // namespace ashlar::kernels
