#include "ashlar/nn/cca_attention.h"

#include <cmath>

#include "ashlar/kernels/conv.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/qk.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

static_assert(ModelSpec::kMaxHeadDim == kernels::kMaxHeadDim);

kernels::QkShape qk_shape(const ModelSpec& spec) {
  return {spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim,
          spec.rotary_dim(),        spec.qk_norm_eps,         spec.share.group,
          spec.share.delayed_values};
}

kernels::AttentionShape attention_shape(const AttentionCall& call) {
  const ModelSpec& spec = call.spec;
  return {spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim,
          spec.window_of(call.layer), 1.0 / std::sqrt(double(spec.head_dim))};
}

// Columns of the fused projection: z = q | k meets the convolutions, vd is the delayed half of the
// values.
Matrix z_part(const ModelSpec& spec, const Tensor& qkv) {
  return Matrix::of(qkv).columns(0, spec.conv_channels());
}
Matrix vd_part(const ModelSpec& spec, const Tensor& qkv) {
  return Matrix::of(qkv).columns(spec.qkv_dim() - spec.delayed_dim(), spec.qkv_dim());
}

bool shares_keys(const ModelSpec& spec) {
  return spec.share.group > spec.groups();
}

// What the ranks that share keys add up in backward, as one tensor.
struct KeyGradients {
  Tensor dkhat, dv, dq_sum;  // [T, K D]; dq_sum absent where nobody shares
  Tensor all;
  KeyGradients(Arena& workspace, const ModelSpec& spec, DType stream, int64_t num_tokens) {
    const Shape shape{num_tokens, spec.kv_dim()};
    if (!shares_keys(spec)) {
      dkhat = workspace.take(stream, shape), dv = workspace.take(stream, shape);
      return;
    }
    all = workspace.take(stream, {3, num_tokens, spec.kv_dim()});
    dkhat = all.slice(0, 1).view(shape), dv = all.slice(1, 2).view(shape);
    dq_sum = all.slice(2, 3).view(shape);
  }
};

// The rows of the halo tensors that this call's segments use.
struct Halos {
  Tensor z, vd;
};
Halos halos(const AttentionSaved& saved, const kernels::Sequence& sequence) {
  return {saved.halo_z.slice(0, sequence.num_halos()),
          saved.halo_vd.slice(0, sequence.num_halos())};
}

}  // namespace

Tensor grouped_conv_matrices(const ModelSpec& spec, const Tensor& conv1_w) {
  const int64_t D = spec.head_dim;
  return conv1_w.view({spec.num_attention_heads + spec.num_key_value_heads, D, 2 * D});
}

void AttentionWeights::take(Arena& arena, const ModelSpec& spec, DType dtype, Part part) {
  const int64_t H = spec.hidden_size, C = spec.conv_channels(), D = spec.head_dim;
  if (part == Part::kProducts) {
    qkv = arena.take(dtype, {spec.qkv_dim(), H});
    conv1_w = arena.take(dtype, {C, D, 2});
    o_proj = arena.take(dtype, {H, spec.q_dim()});
  } else if (part == Part::kVectors) {
    conv0_w = arena.take(dtype, {C, 1, 2});
    conv0_b = arena.take(dtype, {C});
    conv1_b = arena.take(dtype, {C});
    temp = arena.take(dtype, {spec.num_key_value_heads});
  }
}

void AttentionWeights::for_each(const ModelSpec& spec, const std::string& prefix,
                                Visitor visit) const {
  const int64_t q = spec.q_dim(), k = spec.kv_dim();
  const int64_t end = spec.qkv_dim(), delayed = end - spec.delayed_dim();
  const auto matrix = [&](const char* name, const Tensor& tensor, Init init) {
    if (tensor.empty()) return;  // a share of the heads may have values of one kind only
    visit({.name = prefix + name,
           .init = init,
           .kind = OptimizerKind::kMuon,
           .decay = true,
           .product = true},
          tensor);
  };
  matrix("qkv_proj.q_proj.weight", qkv.slice(0, q), Init::kNormal);
  matrix("qkv_proj.k_proj.weight", qkv.slice(q, q + k), Init::kNormal);
  matrix("qkv_proj.v_proj_current.weight", qkv.slice(q + k, delayed), Init::kNormal);
  matrix("qkv_proj.v_proj_delayed.weight", qkv.slice(delayed, end), Init::kNormal);
  visit({.name = prefix + "qkv_proj.conv_qk_depthwise.weight",
         .init = Init::kConvDepthwise,
         .decay = true},
        conv0_w);
  visit({.name = prefix + "qkv_proj.conv_qk_depthwise.bias", .init = Init::kConvDepthwiseBias},
        conv0_b);
  visit({.name = prefix + "qkv_proj.conv_qk_grouped.weight",
         .init = Init::kConvGrouped,
         .decay = true,
         .product = true},
        conv1_w);
  visit({.name = prefix + "qkv_proj.conv_qk_grouped.bias", .init = Init::kConvGroupedBias},
        conv1_b);
  visit({.name = prefix + "qk_norm.temp", .init = Init::kTemp}, temp);
  matrix("o_proj.weight", o_proj, Init::kOutput);
}

AttentionSaved AttentionSaved::make(Arena& arena, const ModelSpec& spec, const Types& types,
                                    int64_t num_tokens, int64_t num_halos) {
  const int64_t T = num_tokens, C = spec.conv_channels(), q = spec.q_dim(), kv = spec.kv_dim();
  AttentionSaved s;
  s.qkv = arena.take(types.stream, {T, spec.qkv_dim()});
  s.y_TC = arena.take(types.stream, {T, C});
  s.halo_z = arena.take(types.stream, {num_halos, 2, C});
  s.halo_vd = arena.take(types.stream, {num_halos, spec.delayed_dim()});
  if (shares_keys(spec)) s.q_sum = arena.take(types.stream, {T, kv});
  s.qhat = arena.take(types.activation, {T, q});
  s.khat = arena.take(types.activation, {T, kv});
  s.v = arena.take(types.activation, {T, kv});
  s.n_q = arena.take(types.stream, {T, spec.num_attention_heads});
  s.n_k = arena.take(types.stream, {T, spec.num_key_value_heads});
  s.att = arena.take(types.activation, {T, q});
  s.lse = arena.take(types.stream, {T, spec.num_attention_heads});
  return s;
}

void attention_forward(const Context& ctx, const AttentionCall& call, const AttentionWeights& w,
                       const AttentionOperands& operands, const AttentionSaved& saved,
                       const Tensor& a_TH, const Tensor& o_TH) {
  const ModelSpec& spec = call.spec;
  const DType compute = call.types.compute;
  const int64_t T = a_TH.shape[0], C = spec.conv_channels();
  const Matrix z = z_part(spec, saved.qkv);
  const auto [halo_z, halo_vd] = halos(saved, call.sequence);

  linear_forward(ctx, compute, Matrix::of(a_TH), operands.qkv, Matrix::of(saved.qkv));
  call.exchange.halo_forward(ctx, call.layer, call.sequence, z, vd_part(spec, saved.qkv), halo_z,
                             halo_vd);
  {
    const Arena::Scope scope(*ctx.workspace);
    const Tensor columns = ctx.workspace->take(call.types.activation, {T, 2 * C});
    conv_columns_forward(ctx, call.sequence, z, halo_z, w.conv0_w, w.conv0_b, columns);
    blockdiag_linear_forward(ctx, compute, Matrix::of(columns), operands.conv1,
                             Matrix::of(saved.y_TC));
  }
  if (call.sharing) {
    qk_query_sums(ctx, qk_shape(spec), saved.qkv, saved.q_sum);
    call.sharing->sum(saved.q_sum, "tp query sums");
  }
  qk_forward(ctx, qk_shape(spec), call.sequence, call.rope, saved.qkv, saved.y_TC, w.conv1_b,
             w.temp, halo_vd, saved.qhat, saved.khat, saved.v, saved.n_q, saved.n_k, saved.q_sum);
  call.exchange.attend(ctx, call.layer, attention_shape(call), call.sequence, saved.qhat,
                       saved.khat, saved.v, saved.att, saved.lse);
  linear_forward(ctx, compute, Matrix::of(saved.att), operands.o_proj, Matrix::of(o_TH));
}

void attention_backward(const Context& ctx, const AttentionCall& call, const AttentionWeights& w,
                        const AttentionOperands& operands, const AttentionSaved& saved,
                        const Tensor& a_TH, const Tensor& do_TH, const AttentionWeights& gradients,
                        const Tensor& da_TH) {
  const ModelSpec& spec = call.spec;
  const auto [stream, activation, compute] = call.types;
  const int64_t T = a_TH.shape[0], C = spec.conv_channels(), q = spec.q_dim();
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dqkv = workspace.take(stream, {T, spec.qkv_dim()});
  const Matrix dz = z_part(spec, dqkv), z = z_part(spec, saved.qkv);
  const Tensor halo_z = halos(saved, call.sequence).z;
  const Tensor dhalo_z = workspace.take(stream, halo_z.shape);
  const Tensor dhalo_vd = workspace.take(stream, {call.sequence.num_halos(), spec.delayed_dim()});
  {
    const Arena::Scope inner(workspace);
    const Tensor dqhat = workspace.take(stream, {T, q}), dy = workspace.take(activation, {T, C});
    const KeyGradients keys(workspace, spec, stream, T);
    const Tensor &dkhat = keys.dkhat, &dv = keys.dv;
    {
      const Arena::Scope attention_scope(workspace);
      const Tensor datt = workspace.take(activation, {T, q});
      linear_backward_input(ctx, compute, Matrix::of(do_TH), operands.o_proj, Matrix::of(datt));
      linear_backward_weight(ctx, compute, Matrix::of(do_TH), Matrix::of(saved.att),
                             gradients.o_proj, call.accumulate);
      call.exchange.attend_backward(ctx, call.layer, attention_shape(call), call.sequence,
                                    saved.qhat, saved.khat, saved.v, saved.att, saved.lse, datt,
                                    dqhat, dkhat, dv);
    }
    if (call.sharing) {
      qk_query_gradient_sums(ctx, qk_shape(spec), call.sequence, call.rope, saved.qkv, saved.y_TC,
                             w.conv1_b, saved.n_q, dqhat, keys.dq_sum);
      call.sharing->sum(keys.all, "tp key gradients");
    }
    qk_backward(ctx, qk_shape(spec), call.sequence, call.rope, saved.qkv, saved.y_TC, w.conv1_b,
                w.temp, saved.n_q, saved.n_k, dqhat, dkhat, dv, dy, dqkv, dhalo_vd, gradients.temp,
                gradients.conv1_b, saved.q_sum, keys.dq_sum);
    const Tensor columns = workspace.take(activation, {T, 2 * C});
    conv_columns_forward(ctx, call.sequence, z, halo_z, w.conv0_w, w.conv0_b, columns);
    blockdiag_linear_backward_weight(ctx, compute, Matrix::of(dy), Matrix::of(columns),
                                     grouped_conv_matrices(spec, gradients.conv1_w),
                                     call.accumulate);
    const Tensor& dcolumns = columns;  // its last use was the line above
    blockdiag_linear_backward_input(ctx, compute, Matrix::of(dy), operands.conv1,
                                    Matrix::of(dcolumns));
    conv_columns_backward(ctx, call.sequence, dcolumns, z, halo_z, w.conv0_w, w.conv0_b, dz,
                          dhalo_z, gradients.conv0_w, gradients.conv0_b);
  }
  call.exchange.halo_backward(ctx, call.layer, call.sequence, dhalo_z, dhalo_vd, dz,
                              vd_part(spec, dqkv));
  linear_backward_weight(ctx, compute, Matrix::of(dqkv), Matrix::of(a_TH), gradients.qkv,
                         call.accumulate);
  if (call.sharing && !call.sharing->first())
    fill(ctx, Matrix::of(dqkv).columns(q, spec.qkv_dim()), 0.0);
  linear_backward_input(ctx, compute, Matrix::of(dqkv), operands.qkv, Matrix::of(da_TH));
}

}  // namespace ashlar::nn
