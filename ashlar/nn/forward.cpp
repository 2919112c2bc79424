// The two walks over the blocks.  What forward keeps for backward stands in saved.cpp.
//
// A chunk of blocks that is not the model's first begins with a norm of its own where a whole model
// has a merge and the norm in one; the chunk before it ends with the merge alone.

#include "ashlar/kernels/embedding.h"
#include "ashlar/nn/model.h"

namespace ashlar::nn {
namespace {

using kernels::Context;

using Why = Use::Why;
using In = TracePlace::Branch;

Use use_of(int64_t block, Why why) {
  return {why, int32_t(block)};
}

// What block l is handed by the one before, and what it hands on.  A block that makes nothing hands
// on what it was handed.
Carry carry_of(const Saved& saved, int64_t l) {
  return {.in = saved.carry[size_t(l)], .out = saved.carry[size_t(l) + 1]};
}

// Whether a recomputed block needs no more of its feed-forward than that makes again in its own
// backward: nobody reads e after its merge, and h is what the feed-forward was given.
bool replays_alone(const ModelSpec& spec, int64_t l) {
  return !spec.blocks[size_t(l)].reads_summands();
}

kernels::MergeFactors factors_of(const ResidualFactors& factors) {
  return {factors.alpha, factors.beta};
}

// The gradient along the stream at a norm before a branch: of h, or of y where what the norm made
// goes on instead of what it was given.
struct AlongStream {
  Tensor dh, dy;
};
AlongStream along_stream(const BlockSpec& block, const Tensor& gradient) {
  if (block.residual == Residual::kNormed) return {{}, gradient};
  return {gradient, {}};
}

// The block without its last merge.  In: blocks[l].a.  Out: blocks[l].h and .e.
void block_forward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l,
                   Why why) {
  const BlockSaved& s = saved.blocks[size_t(l)];
  const Block& w = call.weights.blocks[size_t(l)];
  const BlockSpec& block = call.weights.spec.blocks[size_t(l)];
  const bool normed = block.residual == Residual::kNormed;
  Pass pass = call.at(l, saved.slot);
  pass.again = why == Why::kReplay;
  call.residency.acquire(ctx, use_of(l, why));
  ctx.enter(In::kMixer);
  run_forward(*w.mixer, ctx, pass, s.a, {}, s.o);
  ctx.enter(In::kNone);
  merge_norm_forward(ctx, {.eps = call.weights.spec.norm_eps,
                           .o_TH = s.o,
                           .r_TH = saved.x[size_t(l)],
                           .params = w.mixer_merge.params(),
                           .factors = factors_of(block.mixer_factors),
                           .r_norm_H = normed ? w.mixer_norm.value : Tensor{},
                           .r_rstd_T = normed ? saved.rstd[size_t(l)] : Tensor{},
                           .w_H = w.feed_forward_norm.value,
                           .h_TH = s.h,
                           .y_TH = s.m,
                           .rstd_T = s.rstd_m,
                           .weight_offset = call.weights.spec.norm_weight_offset()});
  ctx.enter(In::kFeedForward);
  if (why == Why::kForward || !replays_alone(call.weights.spec, l))
    run_forward(*w.feed_forward, ctx, pass, s.m, carry_of(saved, l), s.e);
  ctx.enter(In::kNone);
  call.residency.release(ctx, use_of(l, why));
  if (saved.in_memory) *saved.in_memory = {l, saved.slot};
}

// Norm weight that reads x[l], and where its output goes.
struct NormOf {
  Tensor weight, out;
};
NormOf norm_of(const ModelWeights& weights, const Saved& saved, int64_t l) {
  if (l == weights.spec.num_blocks()) return {weights.norm.value, saved.final_TH};
  if (l == saved.chunk.end) return {};  // the next chunk's
  return {weights.blocks[size_t(l)].mixer_norm.value, saved.blocks[size_t(l)].a};
}

// What a branch is given, made from the stream before it.
void norm_of_stream(const Context& ctx, const ModelCall& call, const Tensor& stream_TH,
                    const Tensor& norm, const Tensor& out_TH, const Tensor& rstd_T) {
  const ModelSpec& spec = call.weights.spec;
  rms_norm_forward(ctx, spec.norm_eps, stream_TH, norm, out_TH, rstd_T, spec.norm_weight_offset());
}

void recompute(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l) {
  ctx.enter("recomputation", l);
  norm_of_stream(ctx, call, saved.x[size_t(l)], call.weights.blocks[size_t(l)].mixer_norm.value,
                 saved.blocks[size_t(l)].a, saved.rstd[size_t(l)]);
  block_forward(ctx, call, saved, l, Why::kReplay);
}

}  // namespace

Pass ModelCall::at(int64_t block, int slot) const {
  return {.types = types,
          .sequence = sequence,
          .exchanges = exchanges,
          .block = block,
          .slot = slot,
          .rope = rope[size_t(block)],
          .accumulate = accumulate,
          .late = late,
          .losses = losses};
}

void forward(const Context& ctx, const ModelCall& call, const Saved& saved) {
  const ModelWeights& w = call.weights;
  const auto [begin, end] = saved.chunk;
  ctx.enter("forward");
  if (begin == 0)
    embedding_forward(ctx, {.ids_T = call.ids_T,
                            .emb_VH = w.embed.value,
                            .scale_H = w.input_scale.value,
                            .bias_H = w.input_bias.value,
                            .x_TH = saved.x[0]});
  const NormOf first = norm_of(w, saved, begin);
  norm_of_stream(ctx, call, saved.x[size_t(begin)], first.weight, first.out,
                 saved.rstd[size_t(begin)]);
  for (int64_t l = begin; l < end; ++l) {
    ctx.enter("forward", l);
    block_forward(ctx, call, saved, l, Why::kForward);
    const BlockSaved& s = saved.blocks[size_t(l)];
    const Block& b = w.blocks[size_t(l)];
    const BlockSpec& block = w.spec.blocks[size_t(l)];
    const bool normed = block.residual == Residual::kNormed;
    const NormOf next = norm_of(w, saved, l + 1);
    merge_norm_forward(ctx, {.eps = call.weights.spec.norm_eps,
                             .o_TH = s.e,
                             .r_TH = s.h,
                             .params = b.feed_forward_merge.params(),
                             .factors = factors_of(block.feed_forward_factors),
                             .r_norm_H = normed ? b.feed_forward_norm.value : Tensor{},
                             .r_rstd_T = normed ? s.rstd_m : Tensor{},
                             .w_H = next.weight,
                             .h_TH = saved.x[size_t(l) + 1],
                             .y_TH = next.out,
                             .rstd_T = next.weight ? saved.rstd[size_t(l) + 1] : Tensor{},
                             .weight_offset = w.spec.norm_weight_offset()});
  }
}

void backward(const Context& ctx, const ModelCall& call, const Saved& saved,
              const Tensor& dfinal_TH) {
  ASHLAR_ASSERT(saved.keep != Keep::kNothing);
  const ModelWeights& w = call.weights;
  const auto [stream, activation, compute] = call.types;
  const auto [begin, end] = saved.chunk;
  const bool ends_model = end == w.spec.num_blocks();
  const Shape shape = saved.x[size_t(begin)].shape;
  const Why why = call.late ? Why::kInputs : Why::kBackward;
  ctx.enter("backward");
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  // Gradient of the stream, or of the normed stream where that goes on; updated in place.
  const Tensor dstream = ends_model ? workspace.take(stream, shape) : saved.d_stream();
  const Tensor dbranch = workspace.take(activation, shape);  // of a sub-layer's output
  const Tensor da = workspace.take(activation, shape), dm = workspace.take(stream, shape);
  const Tensor dcarry =
      saved.d_carry ? saved.d_carry : workspace.take(stream, saved.carry[size_t(end)].shape);
  bool carry_is_read = saved.hands_on;  // by a block above
  for (int64_t l = end - 1; l >= begin; --l) {
    const bool again = saved.in_memory && *saved.in_memory != BlockInMemory{l, saved.slot};
    if (again) recompute(ctx, call, saved, l);
    ctx.enter("backward", l);
    const BlockSaved& s = saved.blocks[size_t(l)];
    const Block& b = w.blocks[size_t(l)];
    const BlockSpec& block = w.spec.blocks[size_t(l)];
    const Pass pass = call.at(l, saved.slot);
    const bool replays = saved.keep == Keep::kBranchInputs;
    const bool last = l + 1 == w.spec.num_blocks();
    const Tensor de = room_after(pass, dbranch), d_o = room_after(pass, dbranch);
    const bool normed = last || l + 1 < end;  // else the norm that follows is the next chunk's
    const Weight& next_norm = last     ? w.norm
                              : normed ? w.blocks[size_t(l) + 1].mixer_norm
                                       : Weight{};
    const AlongStream above = last     ? AlongStream{}
                              : normed ? along_stream(w.spec.blocks[size_t(l) + 1], dstream)
                                       : AlongStream{dstream, {}};
    merge_norm_backward(ctx, {.dy_TH = last     ? dfinal_TH
                                       : normed ? da
                                                : Tensor{},
                              .dh_in_TH = above.dh,
                              .dy_in_TH = above.dy,
                              .o_TH = s.e,
                              .r_TH = s.h,
                              .h_TH = normed ? saved.x[size_t(l) + 1] : Tensor{},
                              .rstd_T = normed ? saved.rstd[size_t(l) + 1] : Tensor{},
                              .params = b.feed_forward_merge.params(),
                              .factors = factors_of(block.feed_forward_factors),
                              .w_H = next_norm.value,
                              .d_o_TH = de,
                              .dr_TH = dstream,
                              .grads = b.feed_forward_merge.gradients(),
                              .dw_H = next_norm.gradient,
                              .weight_offset = w.spec.norm_weight_offset()});
    Carry carry = carry_of(saved, l);
    carry.d_out = carry_is_read ? dcarry : Tensor{};
    carry.d_in = carry.in ? dcarry : Tensor{};
    carry_is_read = carry_is_read || b.feed_forward->needs().carry_width > 0;
    call.residency.acquire(ctx, use_of(l, why));
    ctx.enter(In::kFeedForward);
    if (replays) norm_of_stream(ctx, call, s.h, b.feed_forward_norm.value, s.m, s.rstd_m);
    Pass feed_forward = pass, mixer = pass;
    feed_forward.replay = replays || (again && replays_alone(w.spec, l));
    mixer.replay = replays;
    run_backward(*b.feed_forward, ctx, feed_forward,
                 {.a = s.m, .d_o = de, .da = dm, .carry = carry});
    ctx.enter(In::kNone);
    const AlongStream between = along_stream(block, dstream);
    merge_norm_backward(ctx, {.dy_TH = dm,
                              .dh_in_TH = between.dh,
                              .dy_in_TH = between.dy,
                              .o_TH = s.o,
                              .r_TH = saved.x[size_t(l)],
                              .h_TH = s.h,
                              .rstd_T = s.rstd_m,
                              .params = b.mixer_merge.params(),
                              .factors = factors_of(block.mixer_factors),
                              .w_H = b.feed_forward_norm.value,
                              .d_o_TH = d_o,
                              .dr_TH = dstream,
                              .grads = b.mixer_merge.gradients(),
                              .dw_H = b.feed_forward_norm.gradient,
                              .weight_offset = w.spec.norm_weight_offset()});
    ctx.enter(In::kMixer);
    if (replays)
      norm_of_stream(ctx, call, saved.x[size_t(l)], b.mixer_norm.value, s.a, saved.rstd[size_t(l)]);
    run_backward(*b.mixer, ctx, mixer, {.a = s.a, .d_o = d_o, .da = da, .carry = {}});
    ctx.enter(In::kNone);
    call.residency.release(ctx, use_of(l, why));
  }
  ctx.enter("backward");
  const Weight& first_norm = w.blocks[size_t(begin)].mixer_norm;
  const Tensor dinput = begin == 0 ? dstream : saved.d_stream();
  const AlongStream before = along_stream(w.spec.blocks[size_t(begin)], dstream);
  rms_norm_backward(ctx, {.dy_TH = da,
                          .h_TH = saved.x[size_t(begin)],
                          .w_H = first_norm.value,
                          .rstd_T = saved.rstd[size_t(begin)],
                          .dh_in_TH = before.dh,
                          .dy_in_TH = before.dy,
                          .dh_TH = dinput,
                          .dw_H = first_norm.gradient,
                          .weight_offset = w.spec.norm_weight_offset()});
  if (begin == 0)
    embedding_backward(ctx, {.ids_T = call.ids_T,
                             .emb_VH = w.embed.value,
                             .scale_H = w.input_scale.value,
                             .bias_H = w.input_bias.value,
                             .dx_TH = dstream,
                             .demb_VH = w.embed.gradient,
                             .fixed_id = int32_t(w.spec.pad_token_id),
                             .dscale_H = w.input_scale.gradient,
                             .dbias_H = w.input_bias.gradient});
}

}  // namespace ashlar::nn
