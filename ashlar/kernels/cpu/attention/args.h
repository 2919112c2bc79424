// An attention call with its context, for the plain reference and the blocked kernels.
#pragma once

#include <limits>

#include "ashlar/kernels/attention.h"

namespace ashlar::kernels::cpu {

struct AttentionArgs : Attention {
  const Context& ctx;
  const Sequence& queries;
  std::span<const Segment> keys;
};

// The softmax sum of query row t for out and lse: 0 for a query that saw no key, which only a
// partial call may have; NaN if keys were seen but their scores left the range of the sums.
template <typename T>
T checked_sum(const AttentionArgs& call, int64_t t, T sum) {
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

void attention_forward_reference(const AttentionArgs& call);
void attention_backward_reference(const AttentionArgs& call, const AttentionGradients& gradients);

}  // namespace ashlar::kernels::cpu
