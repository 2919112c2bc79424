// The rows of qk.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/qk.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct QuerySumArgs {
  QkShape s;
  Cells<T> qkv, q_sum;
};
void qk_query_sum_rows_fast(const QuerySumArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct QkArgs {
  QkShape s;
  const Sequence* sequence;
  Cells<T> rope, qkv, y, b1, tau, halo_vd, q_sum, qhat, khat, v, n_q, n_k;
};
void qk_rows_fast(const QkArgs<float>& args, int64_t begin, int64_t end);

// The sums of query gradients read and write what has no default.
template <typename T>
struct QkGradientArgs {
  QkShape s;
  const Sequence* sequence;
  Cells<T> rope, qkv, y, b1;
  Cells<T> tau = {};
  Cells<T> n_q;
  Cells<T> n_k = {}, q_sum = {};
  Cells<T> dqhat;
  Cells<T> dkhat = {}, dv = {};
  Cells<T> dq_sum;
  Cells<T> dy = {}, dqkv = {}, dhalo_vd = {};
};
// partial: dtau [K], db1 [C], and C elements of scratch.
void qk_gradient_rows_fast(const QkGradientArgs<float>& args, int64_t begin, int64_t end,
                           float* partial);
// Writes dq_sum.  partial: D elements of scratch.
void qk_query_gradient_sum_rows_fast(const QkGradientArgs<float>& args, int64_t begin, int64_t end,
                                     float* partial);

// Where the delayed value of a token comes from and where it goes.
struct DelayedNeighbours {
  bool first, last;  // token of its segment
  int64_t halo;      // of the segment; -1: it starts a document
};
inline DelayedNeighbours delayed_neighbours_of(const Sequence& sequence, int64_t t) {
  const auto index = size_t(sequence.segment_T()[size_t(t)]);
  const Segment& segment = sequence.segments()[index];
  return {t == segment.row, t + 1 == segment.row + segment.length,
          sequence.halo_of_segment()[index]};
}

}  // namespace ashlar::kernels::cpu
