// The two walks over the blocks, forward and backward.  saved.cpp lays out what forward keeps.
//
// Between two chunks of blocks, the merge that ends one and the norm that begins the next are two
// kernels; elsewhere they are one.

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

// The carry that block l receives from the block before, and the carry that it hands on.  A block
// that makes none hands on what it received.
Carry carry_of(const Saved& saved, int64_t l) {
  return {.in = saved.carry[size_t(l)], .out = saved.carry[size_t(l) + 1]};
}

// Whether the feed-forward of a recomputed block is left to its own backward, which recomputes what
// it keeps.  This is possible if nothing reads e after its merge.
bool feed_forward_recomputes(const ModelSpec& spec, int64_t l) {
  return !spec.blocks[size_t(l)].reads_summands();
}

kernels::MergeFactors factors_of(const ResidualFactors& factors) {
  return {factors.alpha, factors.beta};
}

// The gradient of the stream at a norm before a branch: of h, the norm's input, or of y, its
// output, if the output is what continues as the residual.
struct AlongStream {
  Tensor dh, dy;
};
AlongStream along_stream(const BlockSpec& block, const Tensor& gradient) {
  if (block.residual == Residual::kNormed) return {{}, gradient};
  return {gradient, {}};
}

// The block without its last merge.  In: blocks[l].a.  Out: blocks[l].h and .e.
void block_forward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l,
                   Mode mode) {
  const BlockSaved& s = saved.blocks[size_t(l)];
  const Block& w = call.weights.blocks[size_t(l)];
  const BlockSpec& block = call.weights.spec.blocks[size_t(l)];
  const bool normed = block.residual == Residual::kNormed;
  const bool recomputes = mode == Mode::kRecompute;
  const Pass pass = call.at(l, saved.slot, mode);
  const Use use = use_of(l, recomputes ? Why::kRecompute : Why::kForward);
  call.residency.acquire(ctx, use);
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
  if (!recomputes || !feed_forward_recomputes(call.weights.spec, l))
    run_forward(*w.feed_forward, ctx, pass, s.m, carry_of(saved, l), s.e);
  ctx.enter(In::kNone);
  call.residency.release(ctx, use);
  if (saved.in_memory) *saved.in_memory = {l, saved.slot};
}

// The weight of the norm that reads x[l], and the place of its output.
struct NormOf {
  Tensor weight, out;
};
NormOf norm_of(const ModelWeights& weights, const Saved& saved, int64_t l) {
  if (l == weights.spec.num_blocks()) return {weights.norm.value, saved.final_TH};
  if (l == saved.chunk.end) return {};  // the next chunk has it
  return {weights.blocks[size_t(l)].mixer_norm.value, saved.blocks[size_t(l)].a};
}

// Computes the input of a branch from the stream before it.
void norm_of_stream(const Context& ctx, const ModelCall& call, const Tensor& stream_TH,
                    const Tensor& norm, const Tensor& out_TH, const Tensor& rstd_T) {
  const ModelSpec& spec = call.weights.spec;
  rms_norm_forward(ctx, spec.norm_eps, stream_TH, norm, out_TH, rstd_T, spec.norm_weight_offset());
}

void recompute(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l) {
  ctx.enter("recomputation", l);
  norm_of_stream(ctx, call, saved.x[size_t(l)], call.weights.blocks[size_t(l)].mixer_norm.value,
                 saved.blocks[size_t(l)].a, saved.rstd[size_t(l)]);
  block_forward(ctx, call, saved, l, Mode::kRecompute);
}

// --- backward ---

// Gradients on their way down through the blocks of a chunk, each updated in place by every block.
struct Gradients {
  Tensor final_TH;  // of Saved::final_TH
  Tensor stream;    // of the stream, or of the normed stream where that goes on
  Tensor o;         // of what a branch returns
  Tensor a, m;      // of the inputs of mixer and feed-forward
  Tensor carry;
  bool carry_is_read;  // by a block above
};

Gradients take_gradients(const Context& ctx, const ModelCall& call, const Saved& saved,
                         const Tensor& dfinal_TH) {
  const auto [begin, end] = saved.chunk;
  const auto [stream, wide, activation, compute] = call.types;
  const Shape shape = saved.x[size_t(begin)].shape;
  const auto take = [&](DType dtype, const Shape& extents) {
    return ctx.workspace->take(dtype, extents);
  };
  const bool ends_model = end == call.weights.spec.num_blocks();
  return {.final_TH = dfinal_TH,
          .stream = ends_model ? take(stream, shape) : saved.d_stream(),
          .o = take(activation, shape),
          .a = take(activation, shape),
          .m = take(activation, shape),
          .carry = saved.d_carry ? saved.d_carry : take(wide, saved.carry[size_t(end)].shape),
          .carry_is_read = saved.hands_on};
}

// The readers of a merge's output: a norm, and the stream that continues above it.
struct Above {
  Weight norm{};                  // without tensors if the next chunk has the norm
  Tensor h_TH{}, rstd_T{}, dy{};  // the norm's input and rstd, and the gradient of its output
  AlongStream stream{};           // the gradient that arrives along the stream
};

Above above(const ModelCall& call, const Saved& saved, int64_t l, const Gradients& g) {
  const ModelWeights& w = call.weights;
  const size_t next = size_t(l) + 1;
  if (l + 1 == w.spec.num_blocks())
    return {.norm = w.norm, .h_TH = saved.x[next], .rstd_T = saved.rstd[next], .dy = g.final_TH};
  if (l + 1 == saved.chunk.end) return {.stream = {g.stream, {}}};
  return {.norm = w.blocks[next].mixer_norm,
          .h_TH = saved.x[next],
          .rstd_T = saved.rstd[next],
          .dy = g.a,
          .stream = along_stream(w.spec.blocks[next], g.stream)};
}

// A merge of o into the residual r.
struct Merge {
  Tensor o_TH, r_TH;
  const MergeWeights& weights;
  const ResidualFactors& factors;
};

// Brings g.stream below the merge.  Out: d_o.
void merge_backward(const Context& ctx, const ModelSpec& spec, const Merge& merge,
                    const Above& above, const Gradients& g, const Tensor& d_o) {
  // A scaled merge reads o and r in any case, and h follows from them.
  const bool scaled = bool(merge.weights.hidden_scale.value);
  merge_norm_backward(ctx, {.dy_TH = above.dy,
                            .dh_in_TH = above.stream.dh,
                            .dy_in_TH = above.stream.dy,
                            .o_TH = merge.o_TH,
                            .r_TH = merge.r_TH,
                            .h_TH = scaled ? Tensor{} : above.h_TH,
                            .rstd_T = above.rstd_T,
                            .params = merge.weights.params(),
                            .factors = factors_of(merge.factors),
                            .w_H = above.norm.value,
                            .d_o_TH = d_o,
                            .dr_TH = g.stream,
                            .grads = merge.weights.gradients(),
                            .dw_H = above.norm.gradient,
                            .weight_offset = spec.norm_weight_offset()});
}

// In: d_o, the gradient of e.  Out: g.m and g.carry.
void feed_forward_backward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l,
                           Mode mode, Gradients& g, const Tensor& d_o) {
  const BlockSaved& s = saved.blocks[size_t(l)];
  const Block& w = call.weights.blocks[size_t(l)];
  Carry carry = carry_of(saved, l);
  carry.d_out = g.carry_is_read ? g.carry : Tensor{};
  carry.d_in = carry.in ? g.carry : Tensor{};
  g.carry_is_read = g.carry_is_read || w.feed_forward->needs().carry_width > 0;
  ctx.enter(In::kFeedForward);
  if (saved.keep == Keep::kBranchInputs)
    norm_of_stream(ctx, call, s.h, w.feed_forward_norm.value, s.m, s.rstd_m);
  run_backward(*w.feed_forward, ctx, call.at(l, saved.slot, mode),
               {.a = s.m, .d_o = d_o, .da = g.m, .carry = carry});
  ctx.enter(In::kNone);
}

// In: d_o, the gradient of o.  Out: g.a.
void mixer_backward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l,
                    Mode mode, const Gradients& g, const Tensor& d_o) {
  const BlockSaved& s = saved.blocks[size_t(l)];
  const Block& w = call.weights.blocks[size_t(l)];
  ctx.enter(In::kMixer);
  if (saved.keep == Keep::kBranchInputs)
    norm_of_stream(ctx, call, saved.x[size_t(l)], w.mixer_norm.value, s.a, saved.rstd[size_t(l)]);
  run_backward(*w.mixer, ctx, call.at(l, saved.slot, mode),
               {.a = s.a, .d_o = d_o, .da = g.a, .carry = {}});
  ctx.enter(In::kNone);
}

// recomputed: recompute() ran the block just before.
void block_backward(const Context& ctx, const ModelCall& call, const Saved& saved, int64_t l,
                    bool recomputed, Gradients& g) {
  const ModelSpec& spec = call.weights.spec;
  const BlockSaved& s = saved.blocks[size_t(l)];
  const Block& w = call.weights.blocks[size_t(l)];
  const BlockSpec& block = spec.blocks[size_t(l)];
  const Mode mixer_mode =
      saved.keep == Keep::kBranchInputs ? Mode::kBackwardRecompute : Mode::kBackward;
  const Mode feed_forward_mode =
      recomputed && feed_forward_recomputes(spec, l) ? Mode::kBackwardRecompute : mixer_mode;
  const Pass pass = call.at(l, saved.slot, mixer_mode);
  const Tensor de = room_after(pass, g.o), d_o = room_after(pass, g.o);
  const Use use = use_of(l, call.late ? Why::kInputs : Why::kBackward);
  merge_backward(ctx, spec, {s.e, s.h, w.feed_forward_merge, block.feed_forward_factors},
                 above(call, saved, l, g), g, de);
  call.residency.acquire(ctx, use);
  feed_forward_backward(ctx, call, saved, l, feed_forward_mode, g, de);
  merge_backward(ctx, spec, {s.o, saved.x[size_t(l)], w.mixer_merge, block.mixer_factors},
                 {.norm = w.feed_forward_norm,
                  .h_TH = s.h,
                  .rstd_T = s.rstd_m,
                  .dy = g.m,
                  .stream = along_stream(block, g.stream)},
                 g, d_o);
  mixer_backward(ctx, call, saved, l, mixer_mode, g, d_o);
  call.residency.release(ctx, use);
}

// The norm below the first block and, of the model's first chunk, the embedding.
void input_backward(const Context& ctx, const ModelCall& call, const Saved& saved,
                    const Gradients& g) {
  const ModelWeights& w = call.weights;
  const auto begin = size_t(saved.chunk.begin);
  const AlongStream stream = along_stream(w.spec.blocks[begin], g.stream);
  rms_norm_backward(ctx, {.dy_TH = g.a,
                          .h_TH = saved.x[begin],
                          .w_H = w.blocks[begin].mixer_norm.value,
                          .rstd_T = saved.rstd[begin],
                          .dh_in_TH = stream.dh,
                          .dy_in_TH = stream.dy,
                          .dh_TH = begin == 0 ? g.stream : saved.d_stream(),
                          .dw_H = w.blocks[begin].mixer_norm.gradient,
                          .weight_offset = w.spec.norm_weight_offset()});
  if (begin > 0 || !w.embed.gradient) return;
  embedding_backward(ctx, {.ids_T = call.ids_T,
                           .emb_VH = w.embed.value,
                           .scale_H = w.input_scale.value,
                           .bias_H = w.input_bias.value,
                           .dx_TH = g.stream,
                           .demb_VH = w.embed.gradient,
                           .fixed_id = int32_t(w.spec.pad_token_id),
                           .dscale_H = w.input_scale.gradient,
                           .dbias_H = w.input_bias.gradient});
}

}  // namespace

Pass ModelCall::at(int64_t block, int slot, Mode mode) const {
  return {.types = types,
          .sequence = sequence,
          .exchanges = exchanges,
          .mode = mode,
          .block = block,
          .slot = slot,
          .rope = rope[size_t(block)],
          .log_decay_H = log_decay[size_t(block)],
          .add_to_gradients = add_to_gradients,
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
    block_forward(ctx, call, saved, l, Mode::kForward);
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
  const auto [begin, end] = saved.chunk;
  ctx.enter("backward");
  const Arena::Scope scope(*ctx.workspace);
  Gradients g = take_gradients(ctx, call, saved, dfinal_TH);
  for (int64_t l = end - 1; l >= begin; --l) {
    const bool overwritten = saved.in_memory && *saved.in_memory != BlockInMemory{l, saved.slot};
    if (overwritten) recompute(ctx, call, saved, l);
    ctx.enter("backward", l);
    block_backward(ctx, call, saved, l, overwritten, g);
  }
  ctx.enter("backward");
  input_backward(ctx, call, saved, g);
}

}  // namespace ashlar::nn
