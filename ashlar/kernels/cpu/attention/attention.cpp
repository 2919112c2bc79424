#include "ashlar/kernels/attention.h"

#include "ashlar/kernels/cpu/attention/blocks.h"

namespace ashlar::kernels {
namespace {

DType sum_type(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

void check(const AttentionCall& call) {
  const auto& [N, K, D, window, scale, partial] = call.shape;
  ASHLAR_ASSERT(K > 0 && N > 0 && N % K == 0 && D > 0 && D <= kMaxHeadDim && window >= 0);
  const int64_t T = call.queries.num_tokens();
  const DType dtype = call.q.dtype;
  ASHLAR_ASSERT(dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16);
  ASHLAR_ASSERT(call.k.dtype == dtype && call.v.dtype == dtype && call.out.dtype == dtype);
  ASHLAR_ASSERT(call.lse_TN.dtype == sum_type(dtype));
  ASHLAR_ASSERT(call.q.numel() == T * N * D && call.out.numel() == T * N * D);
  ASHLAR_ASSERT(call.lse_TN.numel() == T * N);
  ASHLAR_ASSERT(call.k.numel() == call.v.numel() && call.k.numel() % (K * D) == 0);
  const int64_t num_rows = call.k.numel() / (K * D);
  for (const Segment& key : call.keys)
    ASHLAR_ASSERT(key.row >= 0 && key.row + key.length <= num_rows);
}

void check(const AttentionCall& call, const AttentionGradients& gradients) {
  check(call);
  const DType dtype = sum_type(call.q.dtype);
  ASHLAR_ASSERT(gradients.dout.dtype == call.q.dtype && gradients.dq.dtype == dtype);
  ASHLAR_ASSERT(gradients.dk.dtype == dtype && gradients.dv.dtype == dtype);
  ASHLAR_ASSERT(gradients.dout.numel() == call.q.numel() && gradients.dq.numel() == call.q.numel());
  ASHLAR_ASSERT(gradients.dk.numel() == call.k.numel() && gradients.dv.numel() == call.k.numel());
}

// Shape of the record: T, N, K, D and the visible pairs of one head.
void record(const AttentionCall& call, std::string_view op, int64_t flop_per_pair, int64_t bytes) {
  if (!call.ctx.recorder) return;
  const auto& [N, K, D, window, scale, partial] = call.shape;
  const int64_t pairs = visible_pairs(call.queries, call.keys, window);
  call.ctx.record(op, {call.queries.num_tokens(), N, K, D, pairs},
                  {flop_per_pair * D * N * pairs, bytes});
}

int64_t input_bytes(const AttentionCall& call) {
  return call.q.bytes() + call.k.bytes() + call.v.bytes();
}

}  // namespace

int64_t visible_pairs(const Sequence& queries, std::span<const Segment> keys, int64_t window) {
  int64_t pairs = 0;
  for (const Segment& query : queries.segments()) {
    for (const Segment& key : keys) {
      if (key.document != query.document) continue;
      for (int64_t i = 0; i < query.length; ++i) {
        const auto [begin, end] = visible_rows(key, query.position + i, window);
        pairs += std::max<int64_t>(end - begin, 0);
      }
    }
  }
  return pairs;
}

void attention_forward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                       const Attention& x) {
  const AttentionCall call{x, ctx, queries, keys};
  check(call);
  record(call, "attention_forward", 4, input_bytes(call) + x.out.bytes() + x.lse_TN.bytes());
  const gemm::Engine* engine = attention_engine(call);
  // Which of two paths runs depends on the number of keys; on meta the one with workspace is
  // counted, so that a count for many keys holds for fewer.
  if (engine && !ctx.meta() && is_decode(call)) return attention_decode(call);
  if (engine) return attention_forward_blocked(*engine, call);
  if (!ctx.meta()) attention_forward_reference(call);
}

void attention_backward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                        const Attention& x, const AttentionGradients& gradients) {
  const AttentionCall call{x, ctx, queries, keys};
  check(call, gradients);
  record(call, "attention_backward", 10,
         input_bytes(call) + x.out.bytes() + x.lse_TN.bytes() + gradients.dout.bytes() +
             gradients.dq.bytes() + gradients.dk.bytes() + gradients.dv.bytes());
  if (const gemm::Engine* engine = attention_engine(call))
    return attention_backward_blocked(*engine, call, gradients);
  if (!ctx.meta()) attention_backward_reference(call, gradients);
}

}  // namespace ashlar::kernels
