// Causal grouped-query attention over segments, optionally with a sliding window.
//
//   A_{t,s,h} = softmax_s( scale q_{t,h} . k_{s,j(h)} ),  s in t's document, pos_s <= pos_t,
//                                                 and with a window W pos_s > pos_t - W
//   out_{t,h} = sum_s A_{t,s,h} v_{s,j(h)},   j(h) = h / (N/K)
//
// Source   online softmax: Milakov & Gimelshein 2018, arXiv:1805.02867; blocked forward and
//          backward: Dao 2023, arXiv:2307.08691.  No T x T matrix exists at any time.
// Shapes   q dq [T, N*D]; k dk [S, K*D]; v dv [S, K*V]; out dout [T, N*V]; lse [T, N] (log of the
//          softmax sum, natural).  D: head size of queries and keys, V: of values, both at most
//          kMaxHeadDim; every path takes any such pair.  Query segments tile the rows of q; key
//          segments tile the rows of k.  A query segment meets every key segment of its document
//          (usually itself; decode: the cache; context parallel: others).
// Types    q k v out dout: F32, BF16 or F64 (one type); lse, dq dk dv: F32 (F64).  Products of bf16
//          inputs are summed in fp32; softmax statistics in fp32.
// Cost     flop: 2*(D+V)*N per visible (t, s) pair forward, (6*D+4*V)*N backward (scores
//          recomputed).
// Numerics dk, dv: summed over query blocks in order; the same bits for any thread count.  A query
//          whose scores, times scale, pass 1e30 in size has NaN in out and lse; NaN goes through.
//          On AMX lse is that of the weights as rounded to bf16, within 2^-7 of the exact one.
// Memory   workspace: forward k and v packed once, backward q and dout, on AMX in two forms, and
//          there dq of one head of each kv head; sized by rows, not by segments.  Decoding few
//          tokens takes none, but on meta counts as any other call.
// Threads  forward one task per 64 queries and head (on AMX up to four heads of a kv head);
//          backward per kv head and documents of 256 tokens or more.
// Parts    keys may come part by part: a call of AttentionShape::partial gives softmax and sum over
//          its keys alone, attention_merge joins two such results, and backward, given out and lse
//          of the whole, gives the part's share: dq to be added up, dk and dv of its keys.
// Errors   a query that sees no key is our bug (a token sees itself), unless the call is partial:
//          then its out is 0 and its lse -inf.
#pragma once

#include <algorithm>

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

inline constexpr int64_t kMaxHeadDim = 256;

struct AttentionShape {
  int64_t N, K, D, V;
  int64_t window = 0;  // counts the token itself; 0: none
  double scale;
  bool partial = false;  // the keys are a part of those that a query sees, maybe none of them
};

// Rows of the key segment `key` that a query of its document at `position` sees; begin >= end:
// none.
struct RowRange {
  int64_t begin, end;
};
inline RowRange visible_rows(const Segment& key, int64_t position, int64_t window) {
  const int64_t first = window > 0 ? position - window + 1 - key.position : 0;
  const int64_t end = std::min(position + 1 - key.position, key.length);
  return {key.row + std::max<int64_t>(first, 0), key.row + std::max<int64_t>(end, 0)};
}
// Visible (query, key) pairs: the measure of work.
int64_t visible_pairs(const Sequence& queries, std::span<const Segment> keys, int64_t window);

struct Attention {
  AttentionShape shape;
  Tensor q, k, v;
  Tensor out, lse_TN;  // filled by forward
};
void attention_forward(const Context&, const Sequence& queries, std::span<const Segment> keys,
                       const Attention&);

struct AttentionGradients {
  Tensor dout;
  Tensor dq, dk, dv;  // filled
};
void attention_backward(const Context&, const Sequence& queries, std::span<const Segment> keys,
                        const Attention&, const AttentionGradients&);

// Attention over the keys of parts a and b from attention over each:
//   lse = log(e^lse_a + e^lse_b);  out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b
// A part whose lse is -inf is not read.  out may be out_a (or out_b), and lse lse_a.
//
// Shapes   out_a out_b out [T, N*V]; lse_a lse_b lse [T, N].
// Types    lse F32 or F64; out_b F64 with F64, else BF16 or F32; out_a and out the type of out_b or
//          that of lse, so that a sum over many parts is rounded once.
// Cost     3*T*N*V flop; bytes: every operand once.
struct AttentionMerge {
  int64_t V;
  Tensor out_a, lse_a_TN, out_b, lse_b_TN;
  Tensor out, lse_TN;  // filled
};
void attention_merge(const Context&, const AttentionMerge&);

}  // namespace ashlar::kernels
