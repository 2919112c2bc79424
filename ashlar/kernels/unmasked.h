// Linear attention without mask: every token reads all tokens of its document.
//
//   M = sum_t k_t v_t^T     o_t = scale M^T q_t        over the tokens t of a document
//   E = sum_t q_t do_t^T    dq_t = scale M do_t   dk_t = scale E v_t   dv_t = scale E^T k_t
//
// If a document continues in chunks before or behind those here, `outside` has the sum that its
// tokens there add to M (or E).
//
// Source   LASP-2, arXiv:2502.07563, algorithms 1 and 3; the sum is over all chunks (3 prints those
//          behind only).
// Shapes   as in recurrence.h; chunks, sequence, shape, q, k and v of a Recurrence are read.  C
//          chunks; sums [2 C, H, dk, dv]: for each chunk's last document, then for its first;
//          outside the same: from before each chunk, then from behind it.  The elements of a state
//          are stored value channel by value channel, [H, dv, dk].
// Types    as in recurrence.h.
// Cost     per token and head: sums 2 dk dv flop, forward 4 dk dv, backward 10 dk dv.
// Memory   a state, and its packed form, from ctx.workspace.
// Numerics sums over tokens as in linear.h: the same bits for any number of threads.
#pragma once

#include "ashlar/kernels/recurrence.h"

namespace ashlar::kernels {

// Fills sums of left_t right_t^T: of k and v, or in backward of q and dout.  A chunk's first
// document is included only if it continues from before the chunk.
void unmasked_sums(const Context&, DType compute, const Recurrence&, const Matrix& left,
                   const Matrix& right, const Tensor& sums);
// outside: absent if every document is whole here.
void unmasked_forward(const Context&, DType compute, const Recurrence&, const Tensor& outside,
                      const Matrix& out);
// g.d_leaving: the outside part of E.
void unmasked_backward(const Context&, DType compute, const Recurrence&, const Tensor& outside,
                       const RecurrenceGradients& g);

}  // namespace ashlar::kernels
