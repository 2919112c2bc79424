#include "ashlar/kernels/attention.h"

#include <algorithm>

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

DType sum_type(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

void check(const Sequence& queries, std::span<const Segment> keys, const Attention& x) {
  const auto& [N, K, D, V, window, scale, partial] = x.shape;
  ASHLAR_ASSERT(K > 0 && N > 0 && N % K == 0 && window >= 0);
  ASHLAR_ASSERT(D > 0 && D <= kMaxHeadDim && V > 0 && V <= kMaxHeadDim);
  const int64_t T = queries.num_tokens();
  const DType dtype = x.q.dtype;
  ASHLAR_ASSERT(is_real(dtype) && x.k.dtype == dtype && x.v.dtype == dtype && x.out.dtype == dtype);
  ASHLAR_ASSERT(x.lse_TN.dtype == sum_type(dtype) && x.lse_TN.numel() == T * N);
  ASHLAR_ASSERT(x.q.numel() == T * N * D && x.out.numel() == T * N * V);
  const int64_t num_rows = x.k.numel() / (K * D);
  ASHLAR_ASSERT(x.k.numel() == num_rows * K * D && x.v.numel() == num_rows * K * V);
  for (const Segment& key : keys) ASHLAR_ASSERT(key.row >= 0 && key.row + key.length <= num_rows);
}

void check(const Attention& x, const AttentionGradients& g) {
  const DType dtype = sum_type(x.q.dtype);
  ASHLAR_ASSERT(g.dout.dtype == x.q.dtype && g.dq.dtype == dtype);
  ASHLAR_ASSERT(g.dk.dtype == dtype && g.dv.dtype == dtype);
  ASHLAR_ASSERT(g.dout.numel() == x.out.numel() && g.dq.numel() == x.q.numel());
  ASHLAR_ASSERT(g.dk.numel() == x.k.numel() && g.dv.numel() == x.v.numel());
}

Trace::Scope record(const Context& ctx, std::string_view op, DType dtype, const Sequence& queries,
                    std::span<const Segment> keys, const AttentionShape& shape,
                    int64_t flop_per_head_pair, int64_t bytes) {
  if (!ctx.recording()) return {};  // counting pairs takes time
  const int64_t pairs = visible_pairs(queries, keys, shape.window);
  const TraceDims dims{int32_t(shape.N), int32_t(queries.num_tokens()),
                       int32_t(queries.segments().size()), int32_t(shape.D)};
  return ctx.record(op, dtype, {flop_per_head_pair * shape.N * pairs, bytes}, dims,
                    TraceEvent::Varies::kVisiblePairs, pairs);
}

// The sum of min(max(x, 0), most) over all x up to and with this one.
int64_t clamped_sum(int64_t x, int64_t most) {
  const int64_t rising = std::clamp<int64_t>(x, 0, most);
  return rising * (rising + 1) / 2 + std::max<int64_t>(x - most, 0) * most;
}

// The rows of visible_rows() over all rows of the query segment.
int64_t visible_pairs(const Segment& query, const Segment& key, int64_t window) {
  const auto keys_up_to = [&](int64_t position) {  // over all queries
    const int64_t first = position + 1 - key.position;
    return clamped_sum(first + query.length - 1, key.length) - clamped_sum(first - 1, key.length);
  };
  return keys_up_to(query.position) - (window > 0 ? keys_up_to(query.position - window) : 0);
}

}  // namespace

int64_t visible_pairs(const Sequence& queries, std::span<const Segment> keys, int64_t window) {
  const auto by_document = [](const Segment& a, const Segment& b) {
    return a.document < b.document;
  };
  int64_t pairs = 0;
  // A batch may hold thousands of documents, in ascending order on each rank.
  for (auto run = keys.begin(); run != keys.end();) {
    const auto run_end = std::is_sorted_until(run, keys.end(), by_document);
    for (const Segment& query : queries.segments()) {
      const auto [begin, end] = std::equal_range(run, run_end, query, by_document);
      for (auto key = begin; key != end; ++key) pairs += visible_pairs(query, *key, window);
    }
    run = run_end;
  }
  return pairs;
}

void attention_forward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                       const Attention& x) {
  check(queries, keys, x);
  const auto call = record(ctx, "attention_forward", x.q.dtype, queries, keys, x.shape,
                           2 * (x.shape.D + x.shape.V), bytes_of({x.q, x.k, x.v, x.out, x.lse_TN}));
  ctx.ops->attention_forward(ctx, queries, keys, x);
}

void attention_backward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                        const Attention& x, const AttentionGradients& g) {
  check(queries, keys, x);
  check(x, g);
  const auto call = record(ctx, "attention_backward", x.q.dtype, queries, keys, x.shape,
                           6 * x.shape.D + 4 * x.shape.V,
                           bytes_of({x.q, x.k, x.v, x.out, x.lse_TN, g.dout, g.dq, g.dk, g.dv}));
  ctx.ops->attention_backward(ctx, queries, keys, x, g);
}

void attention_merge(const Context& ctx, const AttentionMerge& x) {
  const int64_t rows = x.lse_TN.numel();
  const DType sum = x.lse_TN.dtype;
  ASHLAR_ASSERT(x.V > 0 && x.lse_TN.shape.ndim() == 2 && is_real(x.out_b.dtype));
  ASHLAR_ASSERT(sum == (x.out_b.dtype == DType::kF64 ? DType::kF64 : DType::kF32));
  for (const Tensor* lse : {&x.lse_a_TN, &x.lse_b_TN})
    ASHLAR_ASSERT(lse->numel() == rows && lse->dtype == sum);
  for (const Tensor* part : {&x.out_a, &x.out_b, &x.out})
    ASHLAR_ASSERT(part->numel() == rows * x.V &&
                  (part->dtype == x.out_b.dtype || part->dtype == sum));
  const auto call = ctx.record(
      "attention_merge", x.out_b.dtype,
      {3 * rows * x.V, bytes_of({x.out_a, x.lse_a_TN, x.out_b, x.lse_b_TN, x.out, x.lse_TN})},
      {int32_t(x.lse_TN.shape[1]), int32_t(x.lse_TN.shape[0]), 0, int32_t(x.V)});
  ctx.ops->attention_merge(ctx, x);
}

}  // namespace ashlar::kernels
