// How it works.  The parts, and what each of them reads and fills:
//
//   forward    project           a -qkv product-> qkv = q | k | vc | vd;  z = q | k
//                                halo_forward     z, vd -> halo_z, halo_vd   by the exchange
//                                conv0            z, halo_z -> columns
//                                conv1 product    columns -> y
//                                (query sums)     q -> q_sum    only if ranks share the keys
//                                qk               qkv, y, halo_vd -> qhat, khat, v;  posts keys
//              attend            -> att, lse;  att -o product-> o
//   backward   (keys)            posts the keys
//              attend_backward   d_o -o product-> datt -> dqhat, dkhat, dv;  posts the gradients
//                                of keys and values
//              project_backward  the same in reverse.  qk_backward writes dqkv, in z the part
//                                through the mean; conv_columns_backward adds the part through the
//                                convolutions, halo_backward the part from other segments.  Only
//                                then is dqkv complete, and the qkv product follows.
//
// columns are twice as wide as z.  Where activations are narrower than the wide type, columns are
// saved; else project_backward recomputes them while the keys' gradients are in flight, and reuses
// their memory for their gradient.  Scopes of the workspace end as soon as their tensors have been
// read.
#include "ashlar/nn/cca_attention.h"

#include <array>
#include <cmath>

#include "ashlar/kernels/conv.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/qk.h"
#include "ashlar/nn/lora.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

// The values of all key heads are stored flat, [current | delayed]; each half is a matrix.
Section current_values(const CcaSpec& whole) {
  const int64_t K = whole.num_key_heads, half = whole.kv_dim() / 2;
  return {Grain::kKeyHead, K, whole.head_dim, 0, half, 0};
}
Section delayed_values(const CcaSpec& whole) {
  const int64_t K = whole.num_key_heads, half = whole.kv_dim() / 2;
  return {Grain::kKeyHead, K, whole.head_dim, 0, half, half};
}

kernels::QkShape qk_shape(const CcaShape& s) {
  return {s.N, s.K, s.D, s.rotary_dim, s.qk_norm_eps, s.group, s.delayed};
}

kernels::Attention attention_of(const CcaShape& s, const CcaSaved& saved) {
  return {.shape = {.N = s.N,
                    .K = s.K,
                    .D = s.D,
                    .V = s.D,
                    .window = s.window,
                    .scale = 1.0 / std::sqrt(double(s.D))},
          .q = saved.qhat,
          .k = saved.khat,
          .v = saved.v,
          .out = saved.att,
          .lse_TN = saved.lse};
}

// Columns of the fused projection: z = q | k meets the convolutions, vd is the delayed half of the
// values.
Matrix z_part(const CcaShape& shape, const Tensor& qkv) {
  return Matrix::of(qkv).columns(0, shape.conv_channels());
}
Matrix vd_part(const CcaShape& shape, const Tensor& qkv) {
  return Matrix::of(qkv).columns(shape.qkv_dim() - shape.delayed, shape.qkv_dim());
}

// The rows of the halo tensors that this call's segments use.
struct Halos {
  Tensor z, vd;
};
Halos halos(const CcaSaved& saved, const kernels::Sequence& sequence) {
  return {saved.halo_z.slice(0, sequence.num_halos()),
          saved.halo_vd.slice(0, sequence.num_halos())};
}

// The rows that reach over the borders of segments: z two rows back, the delayed values one.
std::array<Strip, 2> strips(const Matrix& z, const Tensor& halo_z, const Matrix& vd,
                            const Tensor& halo_vd) {
  return {Strip{z, halo_z}, Strip{vd, halo_vd.view({halo_vd.shape[0], 1, vd.cols})}};
}

// The left operand of the grouped convolution, which forward makes and backward may recompute.
void fill_columns(const Context& ctx, const Pass& pass, const CcaWeights& w, const CcaSaved& saved,
                  const Tensor& columns_T2C) {
  conv_columns_forward(ctx, {.sequence = pass.sequence,
                             .z_TC = z_part(w.shape, saved.qkv),
                             .halo_z = halos(saved, pass.sequence).z,
                             .w0_C2 = w.conv0_w.value,
                             .b0_C = w.conv0_b.value,
                             .columns = columns_T2C});
}

}  // namespace

CcaShape CcaShape::of(const CcaSpec& whole, int64_t hidden_size, const Share& share) {
  const int64_t N = whole.num_query_heads, K = whole.num_key_heads, D = whole.head_dim;
  const Portion keys = share.of(Grain::kKeyHead, K);
  return {hidden_size,
          share.of(Grain::kQueryHead, N).size(),
          keys.size(),
          D,
          N / K,
          keys.num_copies,
          portion_of(delayed_values(whole), share).size(),
          whole.rope().rotary_dim,
          whole.window,
          whole.qk_norm_eps};
}

void CcaWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& m = std::get<CcaSpec>(layer.of_block().mixer);
  const int64_t H = layer.model.hidden_size, N = m.num_query_heads, K = m.num_key_heads;
  const int64_t D = m.head_dim, C = m.conv_channels(), kv = K * D;
  shape = CcaShape::of(m, H, layer.share);
  const Section queries{Grain::kQueryHead, N, D, 0, N * D}, keys{Grain::kKeyHead, K, D, 0, kv};
  const Cut channels{0, {queries, {Grain::kKeyHead, K, D, N * D, kv}}};
  const auto rows = [&](const char* name, int64_t num_rows, const Section& section) {
    return layer.matrix(name, {num_rows, H}, layer.normal(), {0, {section}});
  };
  // The bound of a uniform init is one over the root of the number of inputs.
  const auto conv = [&](const char* name, const Shape& whole, double num_inputs, bool bias) {
    const InitRule uniform{InitRule::Kind::kUniform, 1.0 / std::sqrt(num_inputs)};
    const InitRule other = bias ? LayerSpec::constant(0.0) : layer.normal();
    return ParameterInfo{.name = layer.prefix + name,
                         .shape = whole,
                         .init = layer.init.conv_uniform ? uniform : other,
                         .decay = !bias,
                         .cuts = {channels}};
  };
  const double taps = 2.0, grouped_inputs = 2.0 * double(D);
  visit({.weight = &qkv,
         .logical = {rows("qkv_proj.q_proj.weight", N * D, queries),
                     rows("qkv_proj.k_proj.weight", kv, keys),
                     rows("qkv_proj.v_proj_current.weight", kv / 2, current_values(m)),
                     rows("qkv_proj.v_proj_delayed.weight", kv / 2, delayed_values(m))},
         .operand_shape = {shape.qkv_dim(), H}});
  visit({.weight = &conv0_w,
         .logical = {conv("qkv_proj.conv_qk_depthwise.weight", {C, 1, 2}, taps, false)}});
  visit(
      {.weight = &conv0_b, .logical = {conv("qkv_proj.conv_qk_depthwise.bias", {C}, taps, true)}});
  visit({.weight = &conv1_w,
         .logical = {conv("qkv_proj.conv_qk_grouped.weight", {C, D, 2}, grouped_inputs, false)},
         .operand_shape = shape.conv_matrices()});
  visit({.weight = &conv1_b,
         .logical = {conv("qkv_proj.conv_qk_grouped.bias", {C}, grouped_inputs, true)}});
  visit({.weight = &temp,
         .logical = {{.name = layer.prefix + "qk_norm.temp",
                      .shape = {K},
                      .init = LayerSpec::constant(layer.init.temp),
                      .cuts = {{0, {{Grain::kKeyHead, K, 1, 0, K}}}}}}});
  visit({.weight = &o_proj,
         .logical = {layer.matrix("o_proj.weight", {H, N * D}, layer.output(), {1, {queries}})},
         .operand_shape = {H, shape.q_dim()}});
}

CcaSaved CcaSaved::make(Arena& arena, const CcaShape& shape, const Types& types,
                        const PassShape& tokens) {
  const int64_t T = tokens.num_tokens, num_halos = tokens.num_halos;
  const int64_t C = shape.conv_channels(), q = shape.q_dim(), kv = shape.kv_dim();
  CcaSaved s;
  s.qkv = arena.take(types.activation, {T, shape.qkv_dim()});
  s.y_TC = arena.take(types.activation, {T, C});
  if (tokens.backward && types.activation != types.wide)
    s.columns = arena.take(types.activation, {T, 2 * C});
  s.halo_z = arena.take(types.wide, {num_halos, 2, C});
  s.halo_vd = arena.take(types.wide, {num_halos, shape.delayed});
  if (shape.shares_keys()) s.q_sum = arena.take(types.wide, {T, kv});
  s.qhat = arena.take(types.activation, {T, q});
  s.khat = arena.take(types.activation, {T, kv});
  s.v = arena.take(types.activation, {T, kv});
  s.n_q = arena.take(types.wide, {T, shape.N});
  s.n_k = arena.take(types.wide, {T, shape.K});
  s.att = arena.take(types.activation, {T, q});
  s.lse = arena.take(types.wide, {T, shape.N});
  return s;
}

void CcaBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                        int slot) {
  saved_.set(slot, CcaSaved::make(arenas.block, weights_.shape, types, shape));
}

void CcaBranch::forward(const Context& ctx, const Pass& pass, int part, const Tensor& a_TH,
                        const Carry&, const Tensor& o_TH) {
  run_part(
      part, [&] { project(ctx, pass, a_TH); }, [&] { attend(ctx, pass, o_TH); });
}

void CcaBranch::backward(const Context& ctx, const Pass& pass, int part, const BackwardTensors& t) {
  run_part(
      part, [&] { post_backward(ctx, pass, t); }, [&] { attend_backward(ctx, pass, t); },
      [&] { project_backward(ctx, pass, t); });
}

void CcaBranch::project(const Context& ctx, const Pass& pass, const Tensor& a_TH) const {
  const CcaWeights& w = weights_;
  const CcaSaved& saved = saved_[pass.slot];
  const CcaShape& shape = w.shape;
  const DType compute = pass.types.compute;
  const int64_t T = a_TH.shape[0], C = shape.conv_channels();
  const Matrix z = z_part(shape, saved.qkv);
  const auto [halo_z, halo_vd] = halos(saved, pass.sequence);

  adapted_forward(ctx, pass, Matrix::of(a_TH), w.qkv, Matrix::of(saved.qkv));
  pass.exchanges.tokens.halos->halo_forward(ctx, pass,
                                            strips(z, halo_z, vd_part(shape, saved.qkv), halo_vd));
  {
    const Arena::Scope scope(*ctx.workspace);
    const Tensor columns =
        saved.columns ? saved.columns : ctx.workspace->take(pass.types.activation, {T, 2 * C});
    fill_columns(ctx, pass, w, saved, columns);
    blockdiag_linear_forward(ctx, compute, Matrix::of(columns), w.conv1_w.operand,
                             Matrix::of(saved.y_TC));
  }
  if (HeadExchange* heads = pass.exchanges.heads) {
    qk_query_sums(ctx, qk_shape(shape), saved.qkv, saved.q_sum);
    heads->sum_queries(saved.q_sum);
  }
  qk_forward(ctx, {.shape = qk_shape(shape),
                   .sequence = pass.sequence,
                   .rope_PR = pass.rope,
                   .qkv = saved.qkv,
                   .y_TC = saved.y_TC,
                   .b1_C = w.conv1_b.value,
                   .tau_K = w.temp.value,
                   .halo_vd = halo_vd,
                   .q_sum_TKD = saved.q_sum,
                   .qhat = saved.qhat,
                   .khat = saved.khat,
                   .v = saved.v,
                   .n_q_TN = saved.n_q,
                   .n_k_TK = saved.n_k});
  pass.exchanges.tokens.keys->post_keys(ctx, pass, attention_of(shape, saved));
}

void CcaBranch::attend(const Context& ctx, const Pass& pass, const Tensor& o_TH) const {
  const CcaSaved& saved = saved_[pass.slot];
  pass.exchanges.tokens.keys->attend(ctx, pass, attention_of(weights_.shape, saved));
  adapted_forward(ctx, pass, Matrix::of(saved.att), weights_.o_proj, Matrix::of(o_TH),
                  pass.add_to_output);
}

void CcaBranch::post_backward(const Context& ctx, const Pass& pass,
                              const BackwardTensors& t) const {
  if (pass.recomputes()) return project(ctx, pass, t.a);
  pass.exchanges.tokens.keys->post_backward(ctx, pass,
                                            attention_of(weights_.shape, saved_[pass.slot]));
}

void CcaBranch::attend_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const CcaWeights& w = weights_;
  const CcaSaved& saved = saved_[pass.slot];
  const CcaShape& shape = w.shape;
  const auto [stream, wide, activation, compute] = pass.types;
  const int64_t T = t.a.shape[0], q = shape.q_dim();
  Arena& workspace = *ctx.workspace;
  if (pass.recomputes()) pass.exchanges.tokens.keys->attend(ctx, pass, attention_of(shape, saved));
  Gradients& g = gradients_;
  g.dqkv = gradient_room(ctx, pass, activation, {T, shape.qkv_dim()});
  g.dhalo_z = workspace.take(wide, halos(saved, pass.sequence).z.shape);
  g.dhalo_vd = workspace.take(wide, {pass.sequence.num_halos(), shape.delayed});
  g.inputs.emplace(workspace);
  g.dqhat = workspace.take(wide, {T, q});
  g.dy = gradient_room(ctx, pass, activation, {T, shape.conv_channels()});
  const Shape keys{T, shape.kv_dim()};
  if (shape.shares_keys()) {
    g.shared = workspace.take(wide, {3, T, shape.kv_dim()});
    g.dkhat = g.shared.slice(0, 1).view(keys), g.dv = g.shared.slice(1, 2).view(keys);
    g.dq_sum = g.shared.slice(2, 3).view(keys);
  } else {
    g.dkhat = workspace.take(wide, keys), g.dv = workspace.take(wide, keys);
  }
  const Arena::Scope scope(workspace);
  const Tensor datt = workspace.take(activation, {T, q});
  adapted_backward_input(ctx, pass, Matrix::of(t.d_o), w.o_proj, Matrix::of(saved.att),
                         Matrix::of(datt));
  adapted_backward_weight(ctx, pass, Matrix::of(t.d_o), Matrix::of(saved.att), w.o_proj);
  pass.exchanges.tokens.keys->attend_backward(ctx, pass, attention_of(shape, saved),
                                              g.attention(datt));
}

void CcaBranch::project_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const CcaWeights& w = weights_;
  const CcaSaved& saved = saved_[pass.slot];
  const CcaShape& shape = w.shape;
  HeadExchange* heads = pass.exchanges.heads;
  const auto [stream, wide, activation, compute] = pass.types;
  Gradients& g = gradients_;
  const Tensor halo_z = halos(saved, pass.sequence).z;
  const Matrix dqkv = Matrix::of(g.dqkv), dz = z_part(shape, g.dqkv);

  const Shape columns_shape{t.a.shape[0], 2 * shape.conv_channels()};
  const Tensor columns =
      saved.columns ? saved.columns : gradient_room(ctx, pass, activation, columns_shape);
  if (!saved.columns) fill_columns(ctx, pass, w, saved, columns);
  pass.exchanges.tokens.keys->finish_key_gradients(ctx, pass, g.attention({}));
  if (heads) {
    qk_query_gradient_sums(ctx, {.shape = qk_shape(shape),
                                 .sequence = pass.sequence,
                                 .rope_PR = pass.rope,
                                 .qkv = saved.qkv,
                                 .y_TC = saved.y_TC,
                                 .b1_C = w.conv1_b.value,
                                 .n_q_TN = saved.n_q,
                                 .dqhat = g.dqhat,
                                 .dq_sum_TKD = g.dq_sum});
    heads->sum_key_gradients(g.shared);
  }
  qk_backward(ctx, {.shape = qk_shape(shape),
                    .sequence = pass.sequence,
                    .rope_PR = pass.rope,
                    .qkv = saved.qkv,
                    .y_TC = saved.y_TC,
                    .b1_C = w.conv1_b.value,
                    .tau_K = w.temp.value,
                    .n_q_TN = saved.n_q,
                    .n_k_TK = saved.n_k,
                    .q_sum_TKD = saved.q_sum,
                    .dqhat = g.dqhat,
                    .dkhat = g.dkhat,
                    .dv = g.dv,
                    .dq_sum_TKD = g.dq_sum,
                    .dy_TC = g.dy,
                    .dqkv = g.dqkv,
                    .dhalo_vd = g.dhalo_vd,
                    .dtau_K = w.temp.gradient,
                    .db1_C = w.conv1_b.gradient});
  if (w.conv1_w.gradient)
    blockdiag_weight_gradient(ctx, pass, Matrix::of(g.dy), Matrix::of(columns),
                              w.conv1_w.gradient.view(shape.conv_matrices()));
  const Tensor dcolumns =
      saved.columns ? ctx.workspace->take(activation, columns_shape) : room_after(pass, columns);
  blockdiag_linear_backward_input(ctx, compute, Matrix::of(g.dy), w.conv1_w.operand,
                                  Matrix::of(dcolumns));
  conv_columns_backward(ctx, {.sequence = pass.sequence,
                              .dcolumns = dcolumns,
                              .z_TC = z_part(shape, saved.qkv),
                              .halo_z = halo_z,
                              .w0_C2 = w.conv0_w.value,
                              .b0_C = w.conv0_b.value,
                              .dz_TC = dz,
                              .dhalo_z = g.dhalo_z,
                              .dw0_C2 = w.conv0_w.gradient,
                              .db0_C = w.conv0_b.gradient});
  g.inputs.reset();
  pass.exchanges.tokens.halos->halo_backward(
      ctx, pass, strips(dz, g.dhalo_z, vd_part(shape, g.dqkv), g.dhalo_vd));
  // Every rank that shares keys and values has their whole gradients; only one includes them in da.
  adapted_backward_weight(ctx, pass, dqkv, Matrix::of(t.a), w.qkv);
  const Arena::Scope scope(*ctx.workspace);
  const Matrix counted = heads && !heads->leads()
                             ? without_columns(ctx, pass, g.dqkv, shape.q_dim(), dqkv.cols)
                             : dqkv;
  adapted_backward_input(ctx, pass, counted, w.qkv, Matrix::of(t.a), Matrix::of(t.da),
                         pass.add_to_output);
}

}  // namespace ashlar::nn
