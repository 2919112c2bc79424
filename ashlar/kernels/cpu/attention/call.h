// The arguments of an attention call in one struct, and the causal, windowed and document mask as
// ranges of rows: what the plain reference and the blocked kernels share.
#pragma once

#include <algorithm>
#include <limits>

#include "ashlar/kernels/attention.h"

namespace ashlar::kernels {

struct AttentionCall : Attention {
  const Context& ctx;
  const Sequence& queries;
  std::span<const Segment> keys;
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

// The softmax sum of query row t as out and lse take it: 0 of a query that saw no key, which only a
// partial call may have; NaN where keys were seen but their scores left the range of the sums.
template <typename T>
T checked_sum(const AttentionCall& call, int64_t t, T sum) {
  if (sum != 0) return sum;
  const int64_t document = call.queries.segments()[size_t(call.queries.segment_T()[t])].document;
  for (const Segment& key : call.keys) {
    if (key.document != document) continue;
    const auto [begin, end] = visible_rows(key, call.queries.position_T()[t], call.shape.window);
    if (begin < end) return std::numeric_limits<T>::quiet_NaN();
  }
  ASHLAR_ASSERT(call.shape.partial);  // a token sees itself
  return 0;
}

void attention_forward_reference(const AttentionCall& call);
void attention_backward_reference(const AttentionCall& call, const AttentionGradients& gradients);

}  // namespace ashlar::kernels
