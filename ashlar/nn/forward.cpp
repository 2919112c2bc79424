// The two walks over the blocks, and what forward keeps for backward.
#include <algorithm>

#include "ashlar/kernels/embedding.h"
#include "ashlar/nn/model.h"

namespace ashlar::nn {
namespace {

using kernels::Context;

using Why = Use::Why;
using In = TracePlace::Branch;

Use use_of(int64_t block, Why why) {
  return {why, int32_t(block + 1)};
}

// What block l is handed by the one before, and what it hands on.  A block that makes nothing hands
// on what it was handed.
Carry carry_of(const Saved& saved, int64_t l) {
  return {.in = l > 0 ? saved.carry[size_t(l) - 1] : Tensor{}, .out = saved.carry[size_t(l)]};
}

// Whether a recomputed block needs no more of its feed-forward than that makes again in its own
// backward: nobody reads e after a plain merge, and h is what the feed-forward was given.
bool replays_alone(const ModelSpec& spec, int64_t l) {
  return spec.blocks[size_t(l)].residual == Residual::kPlain;
}

// The block without its last merge.  In: blocks[l].a.  Out: blocks[l].h and .e.
void block_forward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l,
                   Why why) {
  const BlockSaved& s = saved.blocks[size_t(l)];
  const Block& w = call.weights.blocks[size_t(l)];
  const Pass pass = call.at(l, saved.slot);
  call.residency.acquire(ctx, use_of(l, why));
  ctx.enter(In::kMixer);
  run_forward(*w.mixer, ctx, pass, s.a, {}, s.o);
  ctx.enter(In::kNone);
  merge_norm_forward(ctx, {.eps = call.weights.spec.norm_eps,
                           .o_TH = s.o,
                           .r_TH = saved.x[size_t(l)],
                           .params = w.mixer_merge.params(),
                           .w_H = w.feed_forward_norm.value,
                           .h_TH = s.h,
                           .y_TH = s.m,
                           .rstd_T = s.rstd_m});
  ctx.enter(In::kFeedForward);
  if (why == Why::kForward || !replays_alone(call.weights.spec, l))
    run_forward(*w.feed_forward, ctx, pass, s.m, carry_of(saved, l), s.e);
  ctx.enter(In::kNone);
  call.residency.release(ctx, use_of(l, why));
}

// Norm weight that reads x[l], and where its output goes.
struct NormOf {
  Tensor weight, out;
};
NormOf norm_of(const ModelWeights& weights, const Saved& saved, int64_t l) {
  if (l == int64_t(saved.blocks.size())) return {weights.norm.value, saved.final_TH};
  return {weights.blocks[size_t(l)].mixer_norm.value, saved.blocks[size_t(l)].a};
}

void recompute(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l) {
  const NormOf norm = norm_of(call.weights, saved, l);
  ctx.enter("recomputation", l);
  rms_norm_forward(ctx, call.weights.spec.norm_eps, saved.x[size_t(l)], norm.weight, norm.out,
                   saved.rstd[size_t(l)]);
  block_forward(ctx, call, saved, l, Why::kReplay);
}

}  // namespace

Saved Saved::make(Arena& arena, const ModelWeights& weights, const Types& types, TokenCounts tokens,
                  int64_t num_halos, Keep keep, int slot) {
  const ModelSpec& spec = weights.spec;
  const int64_t T = tokens.stream, H = spec.hidden_size, L = spec.num_blocks();
  Saved s;
  s.keep = keep;
  s.slot = slot;
  // Inference reads x[l], and what a block hands on, only while the next one runs: two take turns.
  const auto take = [&](std::vector<Tensor>& list, const Shape& shape) {
    const bool again = keep == Keep::kNothing && list.size() >= 2;
    list.push_back(again ? list[list.size() - 2] : arena.take(types.stream, shape));
  };
  // What the branches of blocks with a plain residual return; the merge reads it at once.
  Tensor output;
  const auto plain = [](const BlockSpec& block) { return block.residual == Residual::kPlain; };
  if (std::any_of(spec.blocks.begin(), spec.blocks.end(), plain))
    output = arena.take(types.stream, {T, H});
  // What the model keeps comes first: where blocks share memory, the input of one is made while the
  // output of the one before is read.
  const auto lay_out = [&](int64_t l, Arena& lasting, Arena& block) {
    const Block& b = weights.blocks[size_t(l)];
    const bool scaled = spec.blocks[size_t(l)].residual == Residual::kScaled;
    const BlockSaved own = BlockSaved::make(block, H, types, T, scaled ? Tensor{} : output);
    for (Branch* branch : {b.mixer.get(), b.feed_forward.get()})
      branch->lay_out({lasting, block}, types, {tokens.layer, num_halos}, slot);
    return own;
  };
  for (int64_t l = 0; l <= L; ++l) {
    take(s.x, {T, H});
    s.rstd.push_back(arena.take(types.stream, {T}));
  }
  std::vector<Tensor> made;
  for (const Block& b : weights.blocks) {
    if (const int64_t width = b.feed_forward->needs().carry_width)
      take(made, {tokens.layer, width});
    s.carry.push_back(made.empty() ? Tensor{} : made.back());
  }
  if (keep == Keep::kAll) {
    for (int64_t l = 0; l < L; ++l) s.blocks.push_back(lay_out(l, arena, arena));
  } else {
    // Blocks share the memory that the largest of them needs.
    Arena unused(Device::kMeta), counter(Device::kMeta);
    for (int64_t l = 0; l < L; ++l) {
      const Arena::Scope scope(counter);
      lay_out(l, unused, counter);
    }
    Arena shared = arena.part(counter.peak_bytes());
    for (int64_t l = 0; l < L; ++l) {
      const Arena::Scope scope(shared);
      s.blocks.push_back(lay_out(l, arena, shared));
    }
  }
  s.final_TH = arena.take(spec.head_fp32 ? types.stream : types.activation, {T, H});
  return s;
}

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
    block_forward(ctx, call, saved, l, Why::kForward);
    const BlockSaved& s = saved.blocks[size_t(l)];
    const NormOf next = norm_of(w, saved, l + 1);
    merge_norm_forward(ctx, {.eps = call.weights.spec.norm_eps,
                             .o_TH = s.e,
                             .r_TH = s.h,
                             .params = w.blocks[size_t(l)].feed_forward_merge.params(),
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
  const Tensor dcarry = workspace.take(stream, saved.carry.back().shape);
  bool carry_is_read = false;  // by a block above
  for (int64_t l = L - 1; l >= 0; --l) {
    // The last block's values are still there from forward.
    const bool again = saved.keep == Keep::kBlockInput && l != L - 1;
    if (again) recompute(ctx, call, saved, l);
    ctx.enter("backward", l);
    const BlockSaved& s = saved.blocks[size_t(l)];
    const Block& b = w.blocks[size_t(l)];
    const Pass pass = call.at(l, saved.slot);
    const bool last = l == L - 1;
    const Tensor de = room_after(pass, dbranch), d_o = room_after(pass, dbranch);
    const Weight& next_norm = last ? w.norm : w.blocks[size_t(l) + 1].mixer_norm;
    merge_norm_backward(ctx, {.dy_TH = last ? dfinal_TH : da,
                              .dh_in_TH = last ? Tensor{} : dstream,
                              .o_TH = s.e,
                              .r_TH = s.h,
                              .h_TH = saved.x[size_t(l) + 1],
                              .rstd_T = saved.rstd[size_t(l) + 1],
                              .params = b.feed_forward_merge.params(),
                              .w_H = next_norm.value,
                              .d_o_TH = de,
                              .dr_TH = dstream,
                              .grads = b.feed_forward_merge.gradients(),
                              .dw_H = next_norm.gradient});
    Carry carry = carry_of(saved, l);
    carry.d_out = carry_is_read ? dcarry : Tensor{};
    carry.d_in = carry.in ? dcarry : Tensor{};
    carry_is_read = carry_is_read || b.feed_forward->needs().carry_width > 0;
    call.residency.acquire(ctx, use_of(l, Why::kBackward));
    ctx.enter(In::kFeedForward);
    Pass feed_forward = pass;
    feed_forward.replay = again && replays_alone(w.spec, l);
    run_backward(*b.feed_forward, ctx, feed_forward,
                 {.a = s.m, .d_o = de, .da = dm, .carry = carry});
    ctx.enter(In::kNone);
    merge_norm_backward(ctx, {.dy_TH = dm,
                              .dh_in_TH = dstream,
                              .o_TH = s.o,
                              .r_TH = saved.x[size_t(l)],
                              .h_TH = s.h,
                              .rstd_T = s.rstd_m,
                              .params = b.mixer_merge.params(),
                              .w_H = b.feed_forward_norm.value,
                              .d_o_TH = d_o,
                              .dr_TH = dstream,
                              .grads = b.mixer_merge.gradients(),
                              .dw_H = b.feed_forward_norm.gradient});
    ctx.enter(In::kMixer);
    run_backward(*b.mixer, ctx, pass, {.a = s.a, .d_o = d_o, .da = da, .carry = {}});
    ctx.enter(In::kNone);
    call.residency.release(ctx, use_of(l, Why::kBackward));
  }
  ctx.enter("backward");
  const Weight& first_norm = w.blocks[0].mixer_norm;
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
