// How it works.  The parts, and what each of them reads and fills:
//
//   forward    project           a -qkv product-> qkv = q | k | v | gate, plus biases;  heads: qkv
//                                -> qhat, khat, v (norms, RoPE);  posts the keys
//              attend            -> att, lse;  att * sigmoid(gate) -o product-> o
//   backward   post_backward     posts the keys; before that project, if backward recomputes
//              attend_backward   d_o -o product-> datt (and dgate) -> dq, dk, dv;  posts the keys'
//                                gradients
//              project_backward  dk, dv are complete (and summed over ranks that share the keys);
//                                heads: dq, dk, dv -> dqkv;  the qkv product last
//
// Without norms and gate nothing reads qkv after forward, so it is in the workspace.  The gated att
// is recomputed in backward, for the product of o_proj's gradient.
//
// Ranks and turns with other heads add their results up in o, and one of them adds the output's
// bias.  The bias's gradient is the sum of d_o, which every rank of a tensor parallel group and
// every turn has; one turn adds it.
#include "ashlar/nn/attention.h"

#include <cmath>

#include "ashlar/kernels/bias.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/output_gate.h"
#include "ashlar/nn/lora.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

kernels::Attention attention_of(const AttentionWeights& w, const AttentionSaved& saved) {
  return {.shape = {.N = w.shape.N,
                    .K = w.shape.K,
                    .D = w.shape.D,
                    .V = w.shape.D,
                    .window = w.window,
                    .scale = 1.0 / std::sqrt(double(w.shape.D))},
          .q = saved.qhat,
          .k = saved.khat,
          .v = saved.v,
          .out = saved.att,
          .lse_TN = saved.lse};
}

// The gate's columns of the fused product, or of its gradient.
Matrix gate_of(const AttentionWeights& w, const Tensor& qkv) {
  return Matrix::of(qkv).columns(w.shape.gate_begin(), w.shape.width());
}

// The columns of the fused product, or of its gradient, that have this bias.
Matrix columns_of(const Weight& bias, int64_t begin, const Tensor& qkv) {
  return Matrix::of(qkv).columns(begin, begin + bias.value.numel());
}

}  // namespace

void AttentionWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& m = std::get<AttentionSpec>(layer.of_block().mixer);
  const int64_t H = layer.model.hidden_size, D = m.head_dim;
  const int64_t N = m.num_query_heads, K = m.num_key_heads;
  const Portion keys_here = layer.share.of(Grain::kKeyHead, K);
  shape = {layer.share.of(Grain::kQueryHead, N).size(),
           keys_here.size(),
           D,
           m.rope().rotary_dim,
           layer.model.norm_eps,
           layer.model.norm_weight_offset(),
           m.output_gate};
  key_copies = keys_here.num_copies;
  window = m.window;
  const Section queries{Grain::kQueryHead, N, D, 0, N * D}, keys{Grain::kKeyHead, K, D, 0, K * D};
  const auto projection = [&](const char* name, const Section& section) {
    return layer.matrix(name, {section.length, H}, layer.normal(), {0, {section}});
  };
  Stored fused{.weight = &qkv,
               .logical = {projection("q_proj.weight", queries), projection("k_proj.weight", keys),
                           projection("v_proj.weight", keys)},
               .operand_shape = {shape.width(), H}};
  if (m.output_gate) fused.logical.push_back(projection("gate_proj.weight", queries));
  visit(fused);
  const auto norm = [&](const char* name, Weight& weight) {
    visit({.weight = &weight,
           .logical = {{.name = layer.prefix + name,
                        .shape = {D},
                        .init = LayerSpec::constant(1.0 - shape.weight_offset),
                        .applied = Applied::kHeads}}});
  };
  if (m.qk_norm == QkNorm::kRms) norm("q_norm.weight", q_norm), norm("k_norm.weight", k_norm);
  visit({.weight = &o_proj,
         .logical = {layer.matrix("o_proj.weight", {H, N * D}, layer.output(), {1, {queries}})},
         .operand_shape = {H, shape.N * D}});
  const auto bias = [&](const char* name, Weight& weight, int64_t length, std::vector<Cut> cuts) {
    visit({.weight = &weight,
           .logical = {{.name = layer.prefix + name,
                        .shape = {length},
                        .init = LayerSpec::constant(0.0),
                        .cuts = std::move(cuts)}}});
  };
  if (m.bias == AttentionBias::kNone) return;
  bias("q_proj.bias", q_bias, N * D, {{0, {queries}}});
  bias("k_proj.bias", k_bias, K * D, {{0, {keys}}});
  bias("v_proj.bias", v_bias, K * D, {{0, {keys}}});
  if (m.output_gate) bias("gate_proj.bias", gate_bias, N * D, {{0, {queries}}});
  if (m.bias == AttentionBias::kQkvo) bias("o_proj.bias", o_bias, H, {});
}

AttentionSaved AttentionSaved::make(Arena& arena, const AttentionWeights& weights,
                                    const Types& types, int64_t num_tokens) {
  const kernels::HeadsShape& shape = weights.shape;
  const int64_t T = num_tokens, q = shape.N * shape.D, kv = shape.K * shape.D;
  AttentionSaved s;
  if (weights.has_norms() || weights.has_gate())
    s.qkv = arena.take(weights.qkv_type(types), {T, shape.width()});
  if (weights.has_norms()) {
    s.rstd_q = arena.take(types.wide, {T, shape.N});
    s.rstd_k = arena.take(types.wide, {T, shape.K});
  }
  s.qhat = arena.take(types.activation, {T, q});
  s.khat = arena.take(types.activation, {T, kv});
  s.v = arena.take(types.activation, {T, kv});
  s.att = arena.take(types.activation, {T, q});
  s.lse = arena.take(types.wide, {T, shape.N});
  return s;
}

BranchNeeds AttentionBranch::needs() const {
  const kernels::HeadsShape& shape = weights_.shape;
  return {.forward_parts = 2,
          .backward_parts = 3,
          .tokens = {.query_cols = shape.N * shape.D,
                     .key_cols = shape.K * shape.D,
                     .value_cols = shape.K * shape.D,
                     .head_dim = shape.D,
                     .window = weights_.window,
                     .key_copies = weights_.key_copies}};
}

void AttentionBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                              int slot) {
  saved_.set(slot, AttentionSaved::make(arenas.block, weights_, types, shape.num_tokens));
}

void AttentionBranch::forward(const Context& ctx, const Pass& pass, int part, const Tensor& a_TH,
                              const Carry&, const Tensor& o_TH) {
  run_part(
      part, [&] { project(ctx, pass, a_TH); }, [&] { attend(ctx, pass, o_TH); });
}

void AttentionBranch::backward(const Context& ctx, const Pass& pass, int part,
                               const BackwardTensors& t) {
  run_part(
      part, [&] { post_backward(ctx, pass, t); }, [&] { attend_backward(ctx, pass, t); },
      [&] { project_backward(ctx, pass, t); });
}

void AttentionBranch::project(const Context& ctx, const Pass& pass, const Tensor& a_TH) const {
  const AttentionWeights& w = weights_;
  const AttentionSaved& saved = saved_[pass.slot];
  const Arena::Scope scope(*ctx.workspace);
  const Shape qkv_shape{a_TH.shape[0], w.shape.width()};
  const Tensor qkv = saved.qkv ? saved.qkv : ctx.workspace->take(w.qkv_type(pass.types), qkv_shape);
  adapted_forward(ctx, pass, Matrix::of(a_TH), w.qkv, Matrix::of(qkv));
  w.for_each_bias([&](const Weight& bias, int64_t begin) {
    bias_forward(ctx, bias.value, columns_of(bias, begin, qkv));
  });
  heads_forward(ctx, {.shape = w.shape,
                      .sequence = pass.sequence,
                      .rope_PR = pass.rope,
                      .qkv = qkv,
                      .q_norm_D = w.q_norm.value,
                      .k_norm_D = w.k_norm.value,
                      .qhat = saved.qhat,
                      .khat = saved.khat,
                      .v = saved.v,
                      .rstd_q_TN = saved.rstd_q,
                      .rstd_k_TK = saved.rstd_k});
  pass.exchanges.tokens.keys->post_keys(ctx, pass, attention_of(w, saved));
}

void AttentionBranch::attend(const Context& ctx, const Pass& pass, const Tensor& o_TH) const {
  const AttentionSaved& saved = saved_[pass.slot];
  pass.exchanges.tokens.keys->attend(ctx, pass, attention_of(weights_, saved));
  const Arena::Scope scope(*ctx.workspace);
  const Tensor y = weights_.has_gate()
                       ? gated(ctx, pass, ctx.workspace->take(saved.att.dtype, saved.att.shape))
                       : saved.att;
  adapted_forward(ctx, pass, Matrix::of(y), weights_.o_proj, Matrix::of(o_TH), pass.add_to_output);
  const LayerSums* layer = pass.exchanges.layer;
  if (weights_.o_bias.value && !pass.add_to_output && (!layer || layer->leads()))
    bias_forward(ctx, weights_.o_bias.value, Matrix::of(o_TH));
}

// The input of o_proj, in `room`.
Tensor AttentionBranch::gated(const Context& ctx, const Pass& pass, const Tensor& room) const {
  const AttentionSaved& saved = saved_[pass.slot];
  output_gate_forward(ctx, saved.att, gate_of(weights_, saved.qkv), room);
  return room;
}

void AttentionBranch::post_backward(const Context& ctx, const Pass& pass,
                                    const BackwardTensors& t) const {
  if (pass.recomputes()) return project(ctx, pass, t.a);
  pass.exchanges.tokens.keys->post_backward(ctx, pass, attention_of(weights_, saved_[pass.slot]));
}

void AttentionBranch::attend_backward(const Context& ctx, const Pass& pass,
                                      const BackwardTensors& t) {
  const AttentionWeights& w = weights_;
  const AttentionSaved& saved = saved_[pass.slot];
  const auto [stream, wide, activation, compute] = pass.types;
  const int64_t T = t.a.shape[0], q = w.shape.N * w.shape.D, kv = w.shape.K * w.shape.D;
  Arena& workspace = *ctx.workspace;
  if (pass.recomputes()) pass.exchanges.tokens.keys->attend(ctx, pass, attention_of(w, saved));
  Gradients& g = gradients_;
  g.dqkv = gradient_room(ctx, pass, activation, {T, w.shape.width()});
  g.inputs.emplace(workspace);
  g.dqhat = workspace.take(wide, {T, q});
  g.dkeys = workspace.take(wide, {2, T, kv});
  const Arena::Scope scope(workspace);
  const Tensor datt = workspace.take(activation, {T, q});
  const Tensor y =
      w.has_gate() ? gated(ctx, pass, gradient_room(ctx, pass, activation, {T, q})) : saved.att;
  adapted_backward_input(ctx, pass, Matrix::of(t.d_o), w.o_proj, Matrix::of(y), Matrix::of(datt));
  adapted_backward_weight(ctx, pass, Matrix::of(t.d_o), Matrix::of(y), w.o_proj);
  if (w.o_bias.value && !pass.add_to_output)
    bias_backward(ctx, Matrix::of(t.d_o), w.o_bias.gradient);
  if (w.has_gate())
    output_gate_backward(ctx, {.dy = datt,
                               .att = saved.att,
                               .gate = gate_of(w, saved.qkv),
                               .datt = datt,
                               .dgate = gate_of(w, g.dqkv)});
  pass.exchanges.tokens.keys->attend_backward(
      ctx, pass, attention_of(w, saved),
      {.dout = datt, .dq = g.dqhat, .dk = g.dkhat(), .dv = g.dv()});
}

void AttentionBranch::project_backward(const Context& ctx, const Pass& pass,
                                       const BackwardTensors& t) {
  const AttentionWeights& w = weights_;
  const AttentionSaved& saved = saved_[pass.slot];
  HeadExchange* heads = pass.exchanges.heads;
  Gradients& g = gradients_;
  pass.exchanges.tokens.keys->finish_key_gradients(
      ctx, pass, {.dout = {}, .dq = g.dqhat, .dk = g.dkhat(), .dv = g.dv()});
  // Each of the ranks that share the keys has the whole sum.  Where gradients of ranks are added up
  // later, only one of them may include it: here in the norm's weight, below in da.
  Tensor dk_norm = w.k_norm.gradient;
  if (heads) {
    heads->sum_key_gradients(g.dkeys);
    if (dk_norm && !heads->leads()) {  // goes to memory that is not read
      dk_norm = ctx.workspace->take(dk_norm.dtype, dk_norm.shape);
      fill(ctx, dk_norm, 0.0);
    }
  }
  heads_backward(ctx, {.shape = w.shape,
                       .sequence = pass.sequence,
                       .rope_PR = pass.rope,
                       .qkv = saved.qkv,
                       .q_norm_D = w.q_norm.value,
                       .k_norm_D = w.k_norm.value,
                       .rstd_q_TN = saved.rstd_q,
                       .rstd_k_TK = saved.rstd_k,
                       .dqhat = g.dqhat,
                       .dkhat = g.dkhat(),
                       .dv = g.dv(),
                       .dqkv = g.dqkv,
                       .dq_norm_D = w.q_norm.gradient,
                       .dk_norm_D = dk_norm});
  g.inputs.reset();
  w.for_each_bias([&](const Weight& bias, int64_t begin) {
    bias_backward(ctx, columns_of(bias, begin, g.dqkv), bias.gradient);
  });
  adapted_backward_weight(ctx, pass, Matrix::of(g.dqkv), Matrix::of(t.a), w.qkv);
  const Arena::Scope scope(*ctx.workspace);
  const Matrix counted =
      heads && !heads->leads()
          ? without_columns(ctx, pass, g.dqkv, w.shape.N * w.shape.D, w.shape.gate_begin())
          : Matrix::of(g.dqkv);
  adapted_backward_input(ctx, pass, counted, w.qkv, Matrix::of(t.a), Matrix::of(t.da),
                         pass.add_to_output);
}

}  // namespace ashlar::nn
