// The two walks over the blocks, and what forward keeps for backward.
#include "ashlar/kernels/embedding.h"
#include "ashlar/nn/model.h"

namespace ashlar::nn {
namespace {

using kernels::Context;

// The block without its last merge.  In: blocks[l].a.  Out: blocks[l].h and .e.
void block_forward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l) {
  const BlockSaved& s = saved.blocks[size_t(l)];
  const BlockWeights& w = call.weights.blocks[size_t(l)];
  const AttentionCall attention = call.at(l);
  call.runner.attention_forward(ctx, attention, s);
  merge_norm_forward(ctx, {.eps = call.weights.spec.norm_eps,
                           .o_TH = s.o,
                           .r_TH = saved.x[size_t(l)],
                           .params = w.attention_merge.params(),
                           .w_H = w.moe_norm.value,
                           .h_TH = s.h,
                           .y_TH = s.m,
                           .rstd_T = s.rstd_m});
  const Tensor r_prev = l > 0 ? saved.blocks[size_t(l) - 1].moe.router.r : Tensor{};
  call.runner.moe_forward(ctx, attention, s, r_prev);
}

// Norm weight that reads x[l], and where its output goes.
struct NormOf {
  Tensor weight, out;
};
NormOf norm_of(const ModelWeights& weights, const Saved& saved, int64_t l) {
  if (l == int64_t(saved.blocks.size())) return {weights.norm.value, saved.final_TH};
  return {weights.blocks[size_t(l)].attention_norm.value, saved.blocks[size_t(l)].a};
}

void recompute(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l) {
  const NormOf norm = norm_of(call.weights, saved, l);
  ctx.enter("recomputation", l);
  rms_norm_forward(ctx, call.weights.spec.norm_eps, saved.x[size_t(l)], norm.weight, norm.out,
                   saved.rstd[size_t(l)]);
  block_forward(ctx, call, saved, l);
}

}  // namespace

Saved Saved::make(Arena& arena, const ModelWeights& weights, const Types& types, TokenCounts tokens,
                  int64_t num_halos, Keep keep) {
  const ModelSpec& spec = weights.spec;
  const int64_t T = tokens.stream, L = spec.num_blocks();
  const Shape stream_shape{T, spec.hidden_size};
  Saved s;
  s.keep = keep;
  for (int64_t l = 0; l <= L; ++l) {
    // Inference reads x[l] only while block l runs: two take turns.
    s.x.push_back(keep == Keep::kNothing && l >= 2 ? s.x[size_t(l) - 2]
                                                   : arena.take(types.stream, stream_shape));
    s.rstd.push_back(arena.take(types.stream, {T}));
  }
  for (int64_t l = 0; l < L; ++l) {
    if (keep == Keep::kAll || l == 0) {
      s.blocks.push_back(
          BlockSaved::make(arena, weights.blocks[size_t(l)], types, tokens, num_halos));
      continue;
    }
    // Blocks share their memory, except for what outlives a block.
    BlockSaved block = s.blocks[0];
    RouterSaved& router = block.moe.router;
    router.expert = arena.take(DType::kI32, router.expert.shape);
    block.moe.plan.count_X = arena.take(DType::kI64, block.moe.plan.count_X.shape);
    router.r = keep == Keep::kNothing && l >= 2 ? s.blocks[size_t(l) - 2].moe.router.r
                                                : arena.take(types.stream, router.r.shape);
    s.blocks.push_back(block);
  }
  s.final_TH = arena.take(spec.head_fp32 ? types.stream : types.activation, stream_shape);
  return s;
}

AttentionCall ModelCall::at(int64_t layer) const {
  const auto l = size_t(layer);
  return {types,   layer,     weights.spec.blocks[l].mixer.window, sequence, exchanges,
          rope[l], accumulate};
}

void forward(const Context& ctx, const ModelCall& call, const Saved& saved) {
  const ModelWeights& w = call.weights;
  const int64_t L = int64_t(w.blocks.size());
  ctx.enter("forward");
  embedding_forward(ctx, {.ids_T = call.ids_T,
                          .emb_VH = w.embed.value,
                          .scale_H = w.input_scale.value,
                          .bias_H = w.input_bias.value,
                          .x_TH = saved.x[0]});
  const NormOf first = norm_of(w, saved, 0);
  rms_norm_forward(ctx, call.weights.spec.norm_eps, saved.x[0], first.weight, first.out,
                   saved.rstd[0]);
  for (int64_t l = 0; l < L; ++l) {
    ctx.enter("forward", l);
    block_forward(ctx, call, saved, l);
    const BlockSaved& s = saved.blocks[size_t(l)];
    const NormOf next = norm_of(w, saved, l + 1);
    merge_norm_forward(ctx, {.eps = call.weights.spec.norm_eps,
                             .o_TH = s.e,
                             .r_TH = s.h,
                             .params = w.blocks[size_t(l)].moe_merge.params(),
                             .w_H = next.weight,
                             .h_TH = saved.x[size_t(l) + 1],
                             .y_TH = next.out,
                             .rstd_T = saved.rstd[size_t(l) + 1]});
  }
}

void backward(const Context& ctx, const ModelCall& call, const Saved& saved,
              const Tensor& dfinal_TH) {
  ASHLAR_ASSERT(saved.keep != Keep::kNothing);
  const ModelWeights& w = call.weights;
  const auto [stream, activation, compute] = call.types;
  const int64_t L = int64_t(w.blocks.size());
  const Shape shape = saved.x[0].shape;
  ctx.enter("backward");
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dstream = workspace.take(stream, shape);  // gradient of the stream, updated in place
  const Tensor dbranch = workspace.take(activation, shape);  // of a sub-layer's output
  const Tensor da = workspace.take(activation, shape), dm = workspace.take(stream, shape);
  const Tensor dr = workspace.take(stream, saved.blocks[0].moe.router.r.shape);
  for (int64_t l = L - 1; l >= 0; --l) {
    // The last block's values are still there from forward.
    if (saved.keep == Keep::kBlockInput && l != L - 1) recompute(ctx, call, saved, l);
    ctx.enter("backward", l);
    const BlockSaved& s = saved.blocks[size_t(l)];
    const BlockWeights& bw = w.blocks[size_t(l)];
    const AttentionCall attention = call.at(l);
    const bool last = l == L - 1;
    const Weight& next_norm = last ? w.norm : w.blocks[size_t(l) + 1].attention_norm;
    merge_norm_backward(ctx, {.dy_TH = last ? dfinal_TH : da,
                              .dh_in_TH = last ? Tensor{} : dstream,
                              .o_TH = s.e,
                              .r_TH = s.h,
                              .h_TH = saved.x[size_t(l) + 1],
                              .rstd_T = saved.rstd[size_t(l) + 1],
                              .params = bw.moe_merge.params(),
                              .w_H = next_norm.value,
                              .d_o_TH = dbranch,
                              .dr_TH = dstream,
                              .grads = bw.moe_merge.gradients(),
                              .dw_H = next_norm.gradient});
    const Tensor r_prev = l > 0 ? saved.blocks[size_t(l) - 1].moe.router.r : Tensor{};
    call.runner.moe_backward(ctx, attention, s, r_prev, dbranch, last ? Tensor{} : dr,
                             l > 0 ? dr : Tensor{}, dm);
    merge_norm_backward(ctx, {.dy_TH = dm,
                              .dh_in_TH = dstream,
                              .o_TH = s.o,
                              .r_TH = saved.x[size_t(l)],
                              .h_TH = s.h,
                              .rstd_T = s.rstd_m,
                              .params = bw.attention_merge.params(),
                              .w_H = bw.moe_norm.value,
                              .d_o_TH = dbranch,
                              .dr_TH = dstream,
                              .grads = bw.attention_merge.gradients(),
                              .dw_H = bw.moe_norm.gradient});
    call.runner.attention_backward(ctx, attention, s, dbranch, da);
  }
  ctx.enter("backward");
  const Weight& first_norm = w.blocks[0].attention_norm;
  rms_norm_backward(ctx, {.dy_TH = da,
                          .h_TH = saved.x[0],
                          .w_H = first_norm.value,
                          .rstd_T = saved.rstd[0],
                          .dh_in_TH = dstream,
                          .dh_TH = dstream,
                          .dw_H = first_norm.gradient});
  embedding_backward(ctx, {.ids_T = call.ids_T,
                           .emb_VH = w.embed.value,
                           .scale_H = w.input_scale.value,
                           .bias_H = w.input_bias.value,
                           .dx_TH = dstream,
                           .demb_VH = w.embed.gradient,
                           .dscale_H = w.input_scale.gradient,
                           .dbias_H = w.input_bias.gradient});
}

}  // namespace ashlar::nn
