// The arguments of an attention call in one struct, and the causal, windowed and document mask as
// ranges of rows: what the plain reference and the blocked kernels share.
#pragma once

#include <algorithm>

#include "ashlar/kernels/attention.h"

namespace ashlar::kernels {

struct AttentionCall {
  const Context& ctx;
  const AttentionShape& shape;
  const Sequence& queries;
  std::span<const Segment> keys;
  const Tensor &q, &k, &v, &out, &lse_TN;
};
struct AttentionGradients {
  const Tensor &dout, &dq, &dk, &dv;
};

struct RowRange {
  int64_t begin, end;
};
// Rows of the key segment `key` that a query of its document at `position` sees; begin >= end:
// none.
inline RowRange visible_rows(const Segment& key, int64_t position, int64_t window) {
  const int64_t first = window > 0 ? position - window + 1 - key.position : 0;
  const int64_t end = std::min(position + 1 - key.position, key.length);
  return {key.row + std::max<int64_t>(first, 0), key.row + std::max<int64_t>(end, 0)};
}

// True for the softmax sum of a query that saw no key, which only a partial call may have.
inline bool sees_no_key(const AttentionCall& call, double sum) {
  ASHLAR_ASSERT(sum != 0 || call.shape.partial);  // a token sees itself
  return sum == 0;
}

void attention_forward_reference(const AttentionCall& call);
void attention_backward_reference(const AttentionCall& call, const AttentionGradients& gradients);

}  // namespace ashlar::kernels
