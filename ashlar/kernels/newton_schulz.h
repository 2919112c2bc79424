// Newton-Schulz orthogonalisation: pushes the singular values of each matrix towards one.
//
//   X <- X / (||X||_F + 1e-7);   steps times:  A = X X^T,  X <- a X + (b A + c A^2) X
//   (a, b, c) = (3.4445, -4.7750, 2.0315); where rows > cols, A = X^T X and
//   X <- a X + X (b A + c A^2)
//
// Source   Jordan et al. 2024, "Muon"; A and A^2 are symmetric: only tiles that touch the upper
//          triangle are computed, then mirrored.
// Shapes   stacks [G, M, N] of equal M and N, replaced.
// Types    X: F32 or F64.  compute BF16: X, A and b A + c A^2 (with AMX a I + b A + c A^2) are kept
//          in bf16, sums in fp32; F32, F64: throughout.
// Form     fp32: every iterate is a polynomial of A_0 times X, and polynomials of A_0 commute.  If
//          this takes fewer flop, the steps run on m x m matrices alone: with
//          P = a I + b A + c A^2, Q <- P Q and A <- P A P; at the end X <- Q X.  A singular value s
//          enters as s^2, exact to fp32 rounding of the largest one: values below 3e-4 of the norm
//          are less exact than in the direct form, but mapped alike.  bf16 would lose values below
//          0.06, so it keeps the direct form, as do fp64 and the reference.
// Cost     newton_schulz_flop; bytes: X read and written.
// Numerics the same bits for any thread count.
// Threads  whole matrices of all stacks in parallel if there are enough of them, else the tiles of
//          one matrix after the other.  The workspace holds one matrix's operands per active
//          thread, so Context.threads must be set on meta too.
#pragma once

#include <span>

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// Whether the steps run on m x m matrices alone (see Form).
bool newton_schulz_uses_gram(const Context&, DType compute, int64_t rows, int64_t cols, int steps);
// The flop of one matrix; m = min, n = max of rows and cols.  Direct: steps (3 m^2 n + m^3);
// through the Gram matrix: 3 m^2 n + (4 steps - 3) m^3.
int64_t newton_schulz_flop(const Context&, DType compute, int64_t rows, int64_t cols, int steps);
void orthogonalize(const Context&, DType compute, std::span<const Tensor> stacks_GMN,
                   int steps = 5);
inline void orthogonalize(const Context& ctx, DType compute, const Tensor& x_GMN, int steps = 5) {
  orthogonalize(ctx, compute, std::span(&x_GMN, 1), steps);
}

}  // namespace ashlar::kernels
