#include "ashlar/nn/router.h"

#include "ashlar/kernels/router.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

}  // namespace

void RouterWeights::take(Arena& arena, const ModelSpec& spec, int64_t layer, DType dtype,
                         Part part) {
  const int64_t R = spec.router_hidden_size, H = spec.hidden_size, X = spec.num_classes();
  if (part == Part::kProducts) {
    down_w = arena.take(dtype, {R, H});
    fc1_w = arena.take(dtype, {R, R});
    fc2_w = arena.take(dtype, {R, R});
    out_w = arena.take(dtype, {X, R});
  } else if (part == Part::kVectors) {
    down_b = arena.take(dtype, {R});
    if (layer > 0) gamma = arena.take(dtype, {R});
    norm_w = arena.take(dtype, {R});
    fc1_b = arena.take(dtype, {R});
    fc2_b = arena.take(dtype, {R});
  } else {
    balancing = arena.take(dtype, {X});
  }
}

void RouterWeights::for_each(const std::string& prefix, Visitor visit) const {
  const auto matrix = [&](const char* name, const Tensor& tensor) {
    visit({.name = prefix + name, .kind = OptimizerKind::kMuon, .decay = true, .product = true},
          tensor);
  };
  const auto vector = [&](const char* name, const Tensor& tensor, Init init) {
    visit({.name = prefix + name, .init = init}, tensor);
  };
  matrix("down_proj.weight", down_w);
  vector("down_proj.bias", down_b, Init::kZero);
  if (gamma) vector("router_states_scale", gamma, Init::kOne);
  vector("router_mlp.norm.weight", norm_w, Init::kOne);
  matrix("router_mlp.fc1.weight", fc1_w);
  vector("router_mlp.fc1.bias", fc1_b, Init::kZero);
  matrix("router_mlp.fc2.weight", fc2_w);
  vector("router_mlp.fc2.bias", fc2_b, Init::kZero);
  // The small output matrix stays with AdamW: it is a classifier, not a map between features.
  visit({.name = prefix + "router_mlp.out_proj.weight", .decay = true, .product = true}, out_w);
  if (balancing)
    visit({.name = prefix + "balancing_biases", .init = Init::kBalancing, .buffer = true},
          balancing);
}

RouterSaved RouterSaved::make(Arena& arena, const ModelSpec& spec, const Types& types,
                              int64_t num_tokens) {
  const int64_t T = num_tokens, R = spec.router_hidden_size;
  RouterSaved s;
  s.r = arena.take(types.stream, {T, R});
  s.rstd = arena.take(types.stream, {T});
  s.n = arena.take(types.activation, {T, R});
  s.s1 = arena.take(types.activation, {T, R});
  s.s2 = arena.take(types.activation, {T, R});
  s.z1 = arena.take(types.stream, {T, R});
  s.z2 = arena.take(types.stream, {T, R});
  s.p = arena.take(types.stream, {T, spec.num_classes()});
  s.expert = arena.take(DType::kI32, {T});
  s.chosen = arena.take(types.stream, {T});
  return s;
}

void router_forward(const Context& ctx, const ModelSpec& spec, const Types& types,
                    const RouterWeights& w, const RouterOperands& operands,
                    const RouterSaved& saved, const Tensor& m_TH, const Tensor& r_prev_TR) {
  const DType compute = types.compute;
  linear_forward(ctx, compute, Matrix::of(m_TH), operands.down, Matrix::of(saved.r));
  router_mix_forward(ctx, spec.rms_norm_eps, saved.r, w.down_b, r_prev_TR, w.gamma, w.norm_w,
                     saved.n, saved.rstd);
  linear_forward(ctx, compute, Matrix::of(saved.n), operands.fc1, Matrix::of(saved.z1));
  bias_gelu_forward(ctx, saved.z1, w.fc1_b, saved.s1);
  linear_forward(ctx, compute, Matrix::of(saved.s1), operands.fc2, Matrix::of(saved.z2));
  bias_gelu_forward(ctx, saved.z2, w.fc2_b, saved.s2);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor logits = ctx.workspace->take(types.stream, saved.p.shape);
  linear_forward(ctx, compute, Matrix::of(saved.s2), operands.out, Matrix::of(logits));
  router_select_forward(ctx, logits, w.balancing, saved.p, saved.expert, saved.chosen);
}

void router_backward(const Context& ctx, const ModelSpec& spec, const Types& types,
                     const RouterWeights& w, const RouterOperands& operands,
                     const RouterSaved& saved, const Tensor& m_TH, const Tensor& r_prev_TR,
                     const Tensor& dchosen_T, const Tensor& dr_next_TR,
                     const RouterWeights& gradients, const Tensor& dr_prev_TR, const Tensor& dm_TH,
                     bool accumulate) {
  const auto [stream, activation, compute] = types;
  const int64_t T = m_TH.shape[0], R = spec.router_hidden_size;
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dlogits = workspace.take(activation, saved.p.shape);
  router_select_backward(ctx, dchosen_T, saved.p, saved.expert, dlogits);
  const Tensor ds = workspace.take(stream, {T, R}), dz = workspace.take(activation, {T, R});
  linear_backward_input(ctx, compute, Matrix::of(dlogits), operands.out, Matrix::of(ds));
  linear_backward_weight(ctx, compute, Matrix::of(dlogits), Matrix::of(saved.s2), gradients.out_w,
                         accumulate);
  bias_gelu_backward(ctx, ds, saved.z2, w.fc2_b, dz, gradients.fc2_b);
  linear_backward_input(ctx, compute, Matrix::of(dz), operands.fc2, Matrix::of(ds));
  linear_backward_weight(ctx, compute, Matrix::of(dz), Matrix::of(saved.s1), gradients.fc2_w,
                         accumulate);
  bias_gelu_backward(ctx, ds, saved.z1, w.fc1_b, dz, gradients.fc1_b);
  const Tensor& dn = ds;
  linear_backward_input(ctx, compute, Matrix::of(dz), operands.fc1, Matrix::of(dn));
  linear_backward_weight(ctx, compute, Matrix::of(dz), Matrix::of(saved.n), gradients.fc1_w,
                         accumulate);
  const Tensor dr = workspace.take(stream, {T, R});
  const Tensor dr_low = stream == activation ? dr : workspace.take(activation, {T, R});
  router_mix_backward(ctx, dn, dr_next_TR, saved.r, r_prev_TR, w.gamma, w.norm_w, saved.rstd, dr,
                      dr_low, dr_prev_TR, gradients.down_b, gradients.gamma, gradients.norm_w);
  linear_backward_weight(ctx, compute, Matrix::of(dr_low), Matrix::of(m_TH), gradients.down_w,
                         accumulate);
  linear_backward_input(ctx, compute, Matrix::of(dr_low), operands.down, Matrix::of(dm_TH));
}

}  // namespace ashlar::nn
