// Causal grouped-query attention over segments, optionally with a sliding window.
//
//   A_{t,s,h} = softmax_s( scale q_{t,h} . k_{s,j(h)} ),  s in t's document, pos_s <= pos_t,
//                                                 and with a window W pos_s > pos_t - W
//   out_{t,h} = sum_s A_{t,s,h} v_{s,j(h)},   j(h) = h / (N/K)
//
// Source   online softmax: Milakov & Gimelshein 2018, arXiv:1805.02867; blocked forward and
//          backward: Dao 2023, arXiv:2307.08691.  No T x T matrix exists at any time.
// Shapes   q out dq dout [T, N*D]; k v dk dv [S, K*D]; lse [T, N] (log of the softmax sum,
//          natural). Query segments tile the rows of q; key segments tile the rows of k.  A query
//          segment meets every key segment of its document (usually itself; decode: the cache;
//          context parallel: others).
// Types    q k v out dout: F32, BF16 or F64 (one type); lse, dq dk dv: F32 (F64).  Products of bf16
//          inputs are summed in fp32; softmax statistics in fp32.
// Cost     flop: 4*D*N per visible (t, s) pair forward, 10*D*N backward (scores recomputed).
// Numerics dk, dv: summed over query blocks in order; the same bits for any thread count.
// Memory   workspace: forward k and v packed once, backward q and dout; sized by rows, not by
//          segments.
// Threads  forward one task per 64 queries and head; backward per kv head and documents of 256
//          tokens or more.
// Errors   a query that sees no key is our bug (a token sees itself).
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

inline constexpr int64_t kMaxHeadDim = 256;

struct AttentionShape {
  int64_t N, K, D;
  int64_t window = 0;  // counts the token itself; 0: none
  double scale;
};

// Visible (query, key) pairs: the measure of work.
int64_t visible_pairs(const Sequence& queries, std::span<const Segment> keys, int64_t window);

void attention_forward(const Context&, const AttentionShape&, const Sequence& queries,
                       std::span<const Segment> keys, const Tensor& q, const Tensor& k,
                       const Tensor& v, const Tensor& out, const Tensor& lse_TN);
// Overwrites dq, dk, dv.
void attention_backward(const Context&, const AttentionShape&, const Sequence& queries,
                        std::span<const Segment> keys, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& out, const Tensor& lse_TN,
                        const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace ashlar::kernels
