// The cut of attention's backward into tasks.
#pragma once

#include <cstring>

#include "ashlar/kernels/cpu/attention/blocks.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kSpanRows = 256;  // the least queries of a span, but for the last one

// Rows of q, and the rows of k that they see and no other span sees: the unit of parallel work, for
// each kv head.  Inside a span, key blocks and query blocks are walked in order: the same sums for
// any number of threads.
struct Span {
  int32_t query_begin, query_end, key_begin, key_end;
};

// If both lists hold the same documents in ascending order, one after the other, spans are cut
// between documents; else everything is one span.
class Spans {
 public:
  explicit Spans(const AttentionArgs& call) {
    // Sized by rows, so that a dry run with other documents counts the same.
    const int64_t T = call.queries.num_tokens();
    const Tensor memory = call.ctx.workspace->take(DType::kI32, {T / kSpanRows + 1, 4});
    if (call.ctx.meta() || T == 0) return;
    spans_ = reinterpret_cast<Span*>(memory.data);
    if (!cut(call)) {
      spans_[0] = {0, int32_t(T), 0, int32_t(num_key_rows(call))};
      count_ = 1;
    }
  }
  int64_t count() const { return count_; }
  const Span& operator[](int64_t i) const { return spans_[i]; }

 private:
  bool cut(const AttentionArgs& call) {
    const auto& queries = call.queries.segments();
    const auto num_queries = int64_t(queries.size()), num_keys = int64_t(call.keys.size());
    count_ = 0;
    Span open = {0, 0, 0, 0};
    int64_t last_document = -1;
    for (int64_t i = 0, j = 0; i < num_queries;) {
      const int64_t document = queries[i].document;
      if (document <= last_document) return false;  // ascending, hence each comes once
      last_document = document;
      for (; i < num_queries && queries[i].document == document; ++i)
        open.query_end = int32_t(queries[i].row + queries[i].length);
      if (j >= num_keys || call.keys[j].document != document) return false;
      for (; j < num_keys && call.keys[j].document == document; ++j) {
        if (call.keys[j].row < open.key_end) return false;  // spans must not share rows of k
        open.key_end = int32_t(call.keys[j].row + call.keys[j].length);
      }
      const bool last = i == num_queries;
      if (last && j != num_keys) return false;  // keys of a document without queries
      if (!last && open.query_end - open.query_begin < kSpanRows) continue;
      spans_[count_++] = open;
      open = {open.query_end, open.query_end, open.key_end, open.key_end};
    }
    return true;
  }

  Span* spans_ = nullptr;
  int64_t count_ = 0;
};

inline void zero_gradients(const Context& ctx, const AttentionGradients& gradients) {
  for (const Tensor* gradient : {&gradients.dq, &gradients.dk, &gradients.dv})
    parallel_for(*ctx.threads, gradient->bytes(), 1 << 18, [&](int64_t begin, int64_t end) {
      std::memset(gradient->data + begin, 0, size_t(end - begin));
    });
}

}  // namespace ashlar::kernels::cpu
