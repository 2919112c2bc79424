// How it works.  The parts, and what each of them reads and fills:
//
//   forward    project          a -qkv product-> qkv (-convolution-> convolved) -> qhat, khat,
//                               vhat;  a -> gates -> log_decay, beta;  posts the maps of the
//                               chunks here, if other ranks hold the chunks before
//              recur            a -gate product-> z, while states are in flight;  recurrence ->
//                               att;  att, z -norm, gate-> y -o product-> o
//   backward   output_backward  d_o -o product-> dy -norm, gate-> datt, dz;  posts the states'
//                               gradients
//              recur_backward   gradients of o and gate, meanwhile;  recurrence -> dq, dk, dv,
//                               gradients of gates;  heads, convolution -> dqkv;  da is the sum of
//                               three or four products
//
// To recompute, forward runs again; the states that entered are kept, so nothing is sent again.
#include "ashlar/nn/linear_attention.h"

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/short_conv.h"
#include "ashlar/kernels/state_gates.h"
#include "ashlar/kernels/unmasked.h"
#include "ashlar/nn/lora.h"

namespace ashlar::nn {

using kernels::Context;
using kernels::Decay;
using kernels::Matrix;

BranchNeeds LinearBranch::needs() const {
  const LinearShape& shape = weights_.shape;
  const Shape transition =
      transition_shape(shape.recurrence(), shape.decay, shape.delta(), /*num_chunks=*/1);
  BranchNeeds needs{.forward_parts = 2, .backward_parts = 2};
  if (shape.taps > 0) needs.tokens.most_strips[0] = {shape.taps - 1, shape.heads.width()};
  needs.tokens.state = {.heads = shape.heads.H,
                        .key_dim = shape.heads.dk,
                        .value_dim = shape.heads.dv,
                        .transition = shape.gated() ? transition.numel() / shape.heads.H : 0,
                        .ways = shape.ways()};
  needs.tokens.log_decay_H = shape.log_decay_V;
  return needs;
}

void LinearBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                           int slot) {
  saved_.set(slot, LinearSaved::make(arenas, weights_.shape, types, shape));
}

void LinearBranch::forward(const Context& ctx, const Pass& pass, int part, const Tensor& a_TH,
                           const Carry&, const Tensor& o_TH) {
  run_part(
      part, [&] { project(ctx, pass, a_TH); }, [&] { recur(ctx, pass, a_TH, o_TH); });
}

void LinearBranch::backward(const Context& ctx, const Pass& pass, int part,
                            const BackwardTensors& t) {
  run_part(
      part, [&] { output_backward(ctx, pass, t); }, [&] { recur_backward(ctx, pass, t); });
}

// The halos of the segments of this pass, which may be fewer than there is memory for.
Tensor LinearBranch::halo(const Pass& pass, const Tensor& whole) const {
  return whole.slice(0, pass.sequence.num_halos());
}

kernels::Recurrence LinearBranch::recurrence(const Pass& pass) const {
  const LinearShape& shape = weights_.shape;
  const LinearSaved& saved = saved_[pass.slot];
  const TokenExchanges& tokens = pass.exchanges.tokens;
  return {.shape = shape.recurrence(),
          .sequence = pass.sequence,
          .chunks = tokens.states->chunks(pass),
          .decay = shape.decay,
          .q = Matrix::of(saved.qhat),
          .k = Matrix::of(saved.khat),
          .v = Matrix::of(saved.vhat),
          .log_decay = shape.decay == Decay::kHead ? pass.log_decay_H : saved.log_decay,
          .beta_TH = saved.beta,
          .entering = tokens.passing ? saved.entering : tokens.states->states_here(pass),
          .kept = saved.kept};
}

void LinearBranch::gates_forward(const Context& ctx, const Pass& pass, const Tensor& a_TH) const {
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  if (w.shape.kind == LinearKind::kGla) {
    adapted_forward(ctx, pass, Matrix::of(a_TH), w.decay_down, Matrix::of(s.low));
    adapted_forward(ctx, pass, Matrix::of(s.low), w.decay_up, Matrix::of(s.gates));
    gla_gate_forward(ctx, Matrix::of(s.gates), w.decay_bias.value, s.log_decay);
  } else if (w.shape.delta()) {
    adapted_forward(ctx, pass, Matrix::of(a_TH), w.ba, Matrix::of(s.gates));
    delta_gates_forward(ctx, {.ba_T2H = Matrix::of(s.gates),
                              .a_log_H = w.a_log.value,
                              .dt_bias_H = w.dt_bias.value,
                              .log_decay_TH = s.log_decay,
                              .beta_TH = s.beta});
  }
}

void LinearBranch::project(const Context& ctx, const Pass& pass, const Tensor& a_TH) {
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  const auto [stream, wide, activation, compute] = pass.types;
  const TokenExchanges& tokens = pass.exchanges.tokens;
  adapted_forward(ctx, pass, Matrix::of(a_TH), w.qkv, Matrix::of(s.qkv));
  if (w.shape.taps > 0) {
    const Strip strip{Matrix::of(s.qkv), halo(pass, s.halo)};
    tokens.halos->halo_forward(ctx, pass, std::span(&strip, 1));
    short_conv_forward(ctx, {.sequence = pass.sequence,
                             .x_TC = strip.rows,
                             .halo = strip.halo,
                             .w_C1W = w.conv.value,
                             .y_TC = s.convolved});
  }
  linear_heads_forward(ctx, {.shape = w.shape.heads,
                             .qkv = Matrix::of(w.shape.taps > 0 ? s.convolved : s.qkv),
                             .qhat = s.qhat,
                             .khat = s.khat,
                             .vhat = s.vhat,
                             .rstd_q_TK = s.rstd_q,
                             .rstd_k_TK = s.rstd_k});
  gates_forward(ctx, pass, a_TH);
  if (!tokens.passing || pass.mode == Mode::kRecompute) return;
  const int64_t num_states = s.entering.shape[0];
  maps_ = {.block = pass.block,
           .made = ctx.workspace->take(wide, w.shape.states(num_states)),
           .transitions = s.transitions,
           .entering = s.entering};
  const Tensor transition =
      ctx.workspace->take(wide, transition_shape(w.shape.recurrence(), w.shape.decay,
                                                 w.shape.delta(), num_states / w.shape.ways()));
  if (w.shape.gated()) maps_.transition = transition;
  find_maps(ctx, pass, transition);
  tokens.passing->post(ctx, maps_);
}

void LinearBranch::find_maps(const Context& ctx, const Pass& pass, const Tensor& transition) const {
  const Arena::Scope scope(*ctx.workspace);
  const kernels::Recurrence x = recurrence(pass);
  if (weights_.shape.causal)
    recurrence_maps(ctx, pass.types.compute, x, transition, maps_.made);
  else
    unmasked_sums(ctx, pass.types.compute, x, x.k, x.v, maps_.made);
}

void LinearBranch::find_backward_maps(const Context& ctx, const Pass& pass) const {
  const kernels::Recurrence x = recurrence(pass);
  const Matrix dout = Matrix::of(gradients_.datt);
  if (weights_.shape.causal)
    recurrence_backward_maps(ctx, pass.types.compute, x, dout, maps_.made);
  else
    unmasked_sums(ctx, pass.types.compute, x, x.q, dout, maps_.made);
}

void LinearBranch::recur(const Context& ctx, const Pass& pass, const Tensor& a_TH,
                         const Tensor& o_TH) {
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  const DType compute = pass.types.compute;
  const TokenExchanges& tokens = pass.exchanges.tokens;
  const bool exchanges = tokens.passing && pass.mode != Mode::kRecompute;
  adapted_forward(ctx, pass, Matrix::of(a_TH), w.gate, Matrix::of(s.z));
  if (exchanges) tokens.passing->finish(ctx, maps_);
  {
    const Arena::Scope scope(*ctx.workspace);
    const kernels::Recurrence x = recurrence(pass);
    if (w.shape.causal)
      recurrence_forward(ctx, compute, x, Matrix::of(s.att), tokens.states->states_here(pass));
    else
      unmasked_forward(ctx, compute, x, s.entering, Matrix::of(s.att));
  }
  if (exchanges) tokens.passing->pass_on(ctx, maps_);
  gated_norm_squares(ctx, w.shape.norm, s.att, s.squares);
  if (LayerSums* layer = pass.exchanges.layer; layer && !w.shape.norm.shared_weight)
    layer->sum(s.squares);
  gated_norm_forward(ctx, {.shape = w.shape.norm,
                           .x = s.att,
                           .squares_TG = s.squares,
                           .w = w.norm.value,
                           .z = Matrix::of(s.z),
                           .y = s.y});
  adapted_forward(ctx, pass, Matrix::of(s.y), w.o_proj, Matrix::of(o_TH), pass.add_to_output);
}

void LinearBranch::output_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  ASHLAR_ASSERT(!pass.recomputes() && !pass.add_to_output);  // folded branches have no states
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  const auto [stream, wide, activation, compute] = pass.types;
  Arena& workspace = *ctx.workspace;
  const TokenExchanges& tokens = pass.exchanges.tokens;
  Gradients& g = gradients_;
  g.dz = gradient_room(ctx, pass, activation, s.z.shape);
  g.datt = workspace.take(wide, s.att.shape);
  const Shape states = w.shape.states(tokens.passing ? s.entering.shape[0] : 0);
  if (tokens.passing)
    maps_ = {.block = pass.block,
             .backward = true,
             .made = workspace.take(wide, states),
             .transitions = s.transitions,
             .entering = workspace.take(wide, states)};
  const Arena::Scope scope(workspace);
  const Tensor dy = workspace.take(activation, s.y.shape);
  adapted_backward_input(ctx, pass, Matrix::of(t.d_o), w.o_proj, Matrix::of(s.y), Matrix::of(dy));
  const kernels::GatedNormBackward norm{.shape = w.shape.norm,
                                        .x = s.att,
                                        .squares_TG = s.squares,
                                        .w = w.norm.value,
                                        .z = Matrix::of(s.z),
                                        .dy = dy,
                                        .dots_TG = workspace.take(wide, s.squares.shape),
                                        .dx = g.datt,
                                        .dz = Matrix::of(g.dz),
                                        .dw = w.norm.gradient};
  gated_norm_dots(ctx, norm);
  if (LayerSums* layer = pass.exchanges.layer; layer && !w.shape.norm.shared_weight)
    layer->sum(norm.dots_TG);
  gated_norm_backward(ctx, norm);
  if (!tokens.passing) return;
  find_backward_maps(ctx, pass);
  tokens.passing->post(ctx, maps_);
}

void LinearBranch::recur_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  const auto [stream, wide, activation, compute] = pass.types;
  Arena& workspace = *ctx.workspace;
  const TokenExchanges& tokens = pass.exchanges.tokens;
  const Gradients& g = gradients_;
  adapted_backward_weight(ctx, pass, Matrix::of(t.d_o), Matrix::of(s.y), w.o_proj);
  adapted_backward_weight(ctx, pass, Matrix::of(g.dz), Matrix::of(t.a), w.gate);
  // The gradient of the product's rows; with a convolution, halos are added to it.
  const Tensor dqkv = gradient_room(ctx, pass, activation, s.qkv.shape);
  const Tensor da = wide == activation ? t.da : workspace.take(wide, t.da.shape);
  adapted_backward_input(ctx, pass, Matrix::of(g.dz), w.gate, Matrix::of(t.a), Matrix::of(da));
  if (tokens.passing) tokens.passing->finish(ctx, maps_);
  {
    const Arena::Scope scope(workspace);
    const StateGradients gradients{
        .dq = workspace.take(wide, s.qhat.shape),
        .dk = workspace.take(wide, s.khat.shape),
        .dv = workspace.take(wide, s.vhat.shape),
        .dlog_decay = w.shape.gated() ? workspace.take(wide, s.log_decay.shape) : Tensor{},
        .dbeta = s.beta ? workspace.take(wide, s.beta.shape) : Tensor{}};
    const kernels::RecurrenceGradients of_recurrence{
        .dout = Matrix::of(g.datt),
        .d_leaving = tokens.passing ? maps_.entering : Tensor{},
        .dq = Matrix::of(gradients.dq),
        .dk = Matrix::of(gradients.dk),
        .dv = Matrix::of(gradients.dv),
        .dlog_decay = gradients.dlog_decay,
        .dbeta_TH = gradients.dbeta};
    if (w.shape.causal)
      recurrence_backward(ctx, compute, recurrence(pass), of_recurrence);
    else
      unmasked_backward(ctx, compute, recurrence(pass), s.entering, of_recurrence);
    if (tokens.passing) tokens.passing->pass_on(ctx, maps_);
    gates_backward(ctx, pass, t, gradients, da);
    heads_backward(ctx, pass, gradients, dqkv);
  }
  adapted_backward_weight(ctx, pass, Matrix::of(dqkv), Matrix::of(t.a), w.qkv);
  adapted_backward_input(ctx, pass, Matrix::of(dqkv), w.qkv, Matrix::of(t.a), Matrix::of(da),
                         /*accumulate=*/true);
  if (wide != activation) copy(ctx, da, t.da);
}

void LinearBranch::gates_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t,
                                  const StateGradients& gradients, const Tensor& da) const {
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  const auto [stream, wide, activation, compute] = pass.types;
  if (!w.shape.gated()) return;
  const Tensor dgates = gradient_room(ctx, pass, activation, s.gates.shape);
  if (w.shape.delta()) {
    delta_gates_backward(ctx, {.ba_T2H = Matrix::of(s.gates),
                               .a_log_H = w.a_log.value,
                               .dt_bias_H = w.dt_bias.value,
                               .dlog_decay_TH = gradients.dlog_decay,
                               .dbeta_TH = gradients.dbeta,
                               .dba_T2H = Matrix::of(dgates),
                               .da_log_H = w.a_log.gradient,
                               .ddt_bias_H = w.dt_bias.gradient});
    adapted_backward_weight(ctx, pass, Matrix::of(dgates), Matrix::of(t.a), w.ba);
    return adapted_backward_input(ctx, pass, Matrix::of(dgates), w.ba, Matrix::of(t.a),
                                  Matrix::of(da),
                                  /*accumulate=*/true);
  }
  gla_gate_backward(ctx, {.x_TN = Matrix::of(s.gates),
                          .bias_N = w.decay_bias.value,
                          .dlog_decay_TN = gradients.dlog_decay,
                          .dx_TN = Matrix::of(dgates),
                          .dbias_N = w.decay_bias.gradient});
  adapted_backward_weight(ctx, pass, Matrix::of(dgates), Matrix::of(s.low), w.decay_up);
  // Each share has other channels of the gates, made from the same low-rank rows.
  const Tensor dlow = gradient_room(ctx, pass, wide, s.low.shape);
  adapted_backward_input(ctx, pass, Matrix::of(dgates), w.decay_up, Matrix::of(s.low),
                         Matrix::of(dlow));
  LayerSums* layer = pass.exchanges.layer;
  if (layer) layer->sum(dlow);
  adapted_backward_weight(ctx, pass, Matrix::of(dlow), Matrix::of(t.a), w.decay_down);
  // All shares have the whole sum, and the gradients that follow from it; one includes it in da.
  const bool leads = !layer || layer->leads();
  adapted_backward_input(ctx, pass, Matrix::of(dlow), w.decay_down, Matrix::of(t.a),
                         leads ? Matrix::of(da) : Matrix{}, /*accumulate=*/true);
}

void LinearBranch::heads_backward(const Context& ctx, const Pass& pass,
                                  const StateGradients& gradients, const Tensor& dqkv) const {
  const LinearWeights& w = weights_;
  const LinearSaved& s = saved_[pass.slot];
  const bool convolves = w.shape.taps > 0;
  Arena& workspace = *ctx.workspace;
  const Tensor dheads = convolves ? workspace.take(pass.types.activation, s.convolved.shape) : dqkv;
  linear_heads_backward(ctx, {.shape = w.shape.heads,
                              .qkv = Matrix::of(convolves ? s.convolved : s.qkv),
                              .rstd_q_TK = s.rstd_q,
                              .rstd_k_TK = s.rstd_k,
                              .dqhat = gradients.dq,
                              .dkhat = gradients.dk,
                              .dvhat = gradients.dv,
                              .dqkv = Matrix::of(dheads)});
  if (!convolves) return;
  const Tensor dhalo = workspace.take(s.halo.dtype, halo(pass, s.halo).shape);
  short_conv_backward(ctx, {.sequence = pass.sequence,
                            .x_TC = Matrix::of(s.qkv),
                            .halo = halo(pass, s.halo),
                            .w_C1W = w.conv.value,
                            .dy_TC = dheads,
                            .dx_TC = Matrix::of(dqkv),
                            .dhalo = dhalo,
                            .dw = w.conv.gradient});
  const Strip strip{Matrix::of(dqkv), dhalo};
  pass.exchanges.tokens.halos->halo_backward(ctx, pass, std::span(&strip, 1));
}

}  // namespace ashlar::nn
