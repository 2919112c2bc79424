// Linear attention without mask: every token reads all tokens of its document.
//
//   M = sum_t k_t v_t^T     o_t = scale M^T q_t        over the tokens t of a document
//   E = sum_t q_t do_t^T    dq_t = scale M do_t   dk_t = scale E v_t   dv_t = scale E^T k_t
//
// Of a document that goes on in chunks before or behind those here, what its tokens there add to M
// (or E) is known by its sum: `outside`.
//
// Source   LASP-2, arXiv:2502.07563, algorithms 1 and 3; the sum is over all chunks (3 prints those
//          behind only).
// Shapes   as in recurrence.h; chunks, sequence, shape, q, k and v of a Recurrence are read.  C
//          chunks; sums [2 C, H, dk, dv]: of each chunk's last document, then of its first; outside
//          the same: from before each chunk, then from behind it.  Inside a state the elements
//          stand value channel by value channel, [H, dv, dk].
// Types    as in recurrence.h.
// Cost     of a token and head: sums 2 dk dv flop, forward 4 dk dv, backward 10 dk dv.
// Memory   a state, and its packed form, from ctx.workspace.
// Numerics sums over tokens as in linear.h: the same bits for any number of threads.
#pragma once

#include "ashlar/kernels/recurrence.h"

namespace ashlar::kernels {

// Fills sums of left_t right_t^T: of k and v, or backward of q and dout.  Of a chunk's first
// document nothing counts unless it goes on from before the chunk.
void unmasked_sums(const Context&, DType compute, const Recurrence&, const Matrix& left,
                   const Matrix& right, const Tensor& sums);
// outside: absent where every document is here as a whole.
void unmasked_forward(const Context&, DType compute, const Recurrence&, const Tensor& outside,
                      const Matrix& out);
// g.d_leaving: what is outside of E.
void unmasked_backward(const Context&, DType compute, const Recurrence&, const Tensor& outside,
                       const RecurrenceGradients& g);

}  // namespace ashlar::kernels
