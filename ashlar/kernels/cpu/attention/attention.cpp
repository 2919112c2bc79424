#include "ashlar/kernels/cpu/attention/blocks.h"
#include "ashlar/kernels/cpu/attention/tiles.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {

void attention_forward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                       const Attention& x) {
  const AttentionArgs call{x, ctx, queries, keys};
  const gemm::Engine* engine = attention_engine(call);
  // The number of keys decides between two paths.  On meta the path with workspace is counted, so
  // that a count for many keys also holds for fewer; but one token of each document never takes it.
  if (engine && ctx.meta() && decodes_each(call)) return;
  if (engine && !ctx.meta() && is_decode(call)) return attention_decode(call);
#if defined(__x86_64__)
  if (attention_has_tiles(call)) return attention_forward_tiles(call);
#endif
  if (engine) return attention_forward_blocked(*engine, call);
  if (!ctx.meta()) attention_forward_reference(call);
}

void attention_backward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                        const Attention& x, const AttentionGradients& gradients) {
  const AttentionArgs call{x, ctx, queries, keys};
#if defined(__x86_64__)
  if (attention_has_tiles(call)) return attention_backward_tiles(call, gradients);
#endif
  if (const gemm::Engine* engine = attention_engine(call))
    return attention_backward_blocked(*engine, call, gradients);
  if (!ctx.meta()) attention_backward_reference(call, gradients);
}

}  // namespace ashlar::kernels::cpu
