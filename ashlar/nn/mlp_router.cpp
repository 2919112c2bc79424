#include "ashlar/nn/mlp_router.h"

#include "ashlar/kernels/moe.h"
#include "ashlar/kernels/router.h"
#include "ashlar/nn/lora.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

}  // namespace

void MlpRouterWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& moe = std::get<MoeSpec>(layer.of_block().feed_forward);
  const int64_t H = layer.model.hidden_size, R = std::get<MlpRouterSpec>(moe.router).width;
  const int64_t X = moe.num_experts + 1;
  shape = {H, R, X, layer.model.norm_eps};
  const auto matrix = [&](const char* name, Weight& weight, const Shape& extents,
                          OptimizerKind kind) {
    visit({.weight = &weight,
           .logical = {{.name = layer.prefix + name,
                        .shape = extents,
                        .init = layer.normal(),
                        .kind = kind,
                        .decay = true}},
           .operand_shape = extents});
  };
  const auto vector = [&](const char* name, Weight& weight, double value) {
    visit({.weight = &weight,
           .logical = {
               {.name = layer.prefix + name, .shape = {R}, .init = LayerSpec::constant(value)}}});
  };
  matrix("down_proj.weight", down_w, {R, H}, OptimizerKind::kMuon);
  vector("down_proj.bias", down_b, 0.0);
  if (layer.follows_its_router()) vector("router_states_scale", gamma, 1.0);
  vector("router_mlp.norm.weight", norm_w, 1.0);
  matrix("router_mlp.fc1.weight", fc1_w, {R, R}, OptimizerKind::kMuon);
  vector("router_mlp.fc1.bias", fc1_b, 0.0);
  matrix("router_mlp.fc2.weight", fc2_w, {R, R}, OptimizerKind::kMuon);
  vector("router_mlp.fc2.bias", fc2_b, 0.0);
  // AdamW, not Muon: the small output matrix is a classifier, not a map between features.
  matrix("router_mlp.out_proj.weight", out_w, {X, R}, OptimizerKind::kAdamW);
  visit({.weight = &balancing,
         .logical = {{.name = layer.prefix + "balancing_biases",
                      .shape = {X},
                      .init = {InitRule::Kind::kBalancing},
                      .buffer = true}}});
}

MlpRouterSaved MlpRouterSaved::make(const SavedArenas& arenas, const MlpRouterShape& shape,
                                    const Types& types, int64_t num_tokens) {
  const int64_t T = num_tokens, R = shape.R;
  Arena& arena = arenas.block;
  MlpRouterSaved s;
  s.rstd = arena.take(types.wide, {T});
  s.n = arena.take(types.activation, {T, R});
  s.s1 = arena.take(types.activation, {T, R});
  s.s2 = arena.take(types.activation, {T, R});
  s.z1 = arena.take(types.wide, {T, R});
  s.z2 = arena.take(types.wide, {T, R});
  s.p = arena.take(types.wide, {T, shape.X});
  s.expert = arenas.lasting.take(DType::kI32, {T});
  s.weight = arena.take(types.wide, {T});
  return s;
}

void MlpRouter::lay_out(const SavedArenas& arenas, const Types& types, int64_t num_tokens,
                        int slot) {
  saved_.set(slot, MlpRouterSaved::make(arenas, weights_.shape, types, num_tokens));
}

Choice MlpRouter::choice(int slot) const {
  const MlpRouterSaved& saved = saved_[slot];
  const Shape one{saved.expert.numel(), 1};
  return {saved.expert.view(one), saved.weight.view(one)};
}

void MlpRouter::forward(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                        const Carry& carry) const {
  const MlpRouterWeights& w = weights_;
  const MlpRouterSaved& saved = saved_[pass.slot];
  const DType wide = pass.types.wide;
  adapted_forward(ctx, pass, Matrix::of(m_TH), w.down_w, Matrix::of(carry.out));
  router_mix_forward(ctx, {.eps = w.shape.norm_eps,
                           .r_TR = carry.out,
                           .b_dn_R = w.down_b.value,
                           .r_prev_TR = carry.in,
                           .gamma_R = w.gamma.value,
                           .w_R = w.norm_w.value,
                           .n_TR = saved.n,
                           .rstd_T = saved.rstd});
  adapted_forward(ctx, pass, Matrix::of(saved.n), w.fc1_w, Matrix::of(saved.z1));
  bias_gelu_forward(ctx, saved.z1, w.fc1_b.value, saved.s1);
  adapted_forward(ctx, pass, Matrix::of(saved.s1), w.fc2_w, Matrix::of(saved.z2));
  bias_gelu_forward(ctx, saved.z2, w.fc2_b.value, saved.s2);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor logits = ctx.workspace->take(wide, saved.p.shape);
  adapted_forward(ctx, pass, Matrix::of(saved.s2), w.out_w, Matrix::of(logits));
  router_select_forward(ctx, {.logits_TX = logits,
                              .bias_X = w.balancing.value,
                              .p_TX = saved.p,
                              .expert_T = saved.expert,
                              .weight_T = saved.weight});
  leave_out_padding(ctx, pass.sequence, saved.expert);
}

void MlpRouter::backward(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                         const Carry& carry, const Tensor& dweight_Tk, const Tensor& dm_TH) const {
  const MlpRouterWeights& w = weights_;
  const MlpRouterSaved& saved = saved_[pass.slot];
  const auto [stream, wide, activation, compute] = pass.types;
  const int64_t T = m_TH.shape[0], R = w.shape.R;
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor dlogits = gradient_room(ctx, pass, activation, saved.p.shape);
  router_select_backward(ctx, {.dweight_T = dweight_Tk.view(saved.weight.shape),
                               .p_TX = saved.p,
                               .expert_T = saved.expert,
                               .dlogits_TX = dlogits});
  const Tensor ds = workspace.take(wide, {T, R});
  const Tensor dz2 = gradient_room(ctx, pass, activation, {T, R}), dz1 = room_after(pass, dz2);
  adapted_backward_input(ctx, pass, Matrix::of(dlogits), w.out_w, Matrix::of(saved.s2),
                         Matrix::of(ds));
  adapted_backward_weight(ctx, pass, Matrix::of(dlogits), Matrix::of(saved.s2), w.out_w);
  bias_gelu_backward(ctx, {.ds_TR = ds,
                           .z_TR = saved.z2,
                           .b_R = w.fc2_b.value,
                           .dz_TR = dz2,
                           .db_R = w.fc2_b.gradient});
  adapted_backward_input(ctx, pass, Matrix::of(dz2), w.fc2_w, Matrix::of(saved.s1), Matrix::of(ds));
  adapted_backward_weight(ctx, pass, Matrix::of(dz2), Matrix::of(saved.s1), w.fc2_w);
  bias_gelu_backward(ctx, {.ds_TR = ds,
                           .z_TR = saved.z1,
                           .b_R = w.fc1_b.value,
                           .dz_TR = dz1,
                           .db_R = w.fc1_b.gradient});
  const Tensor& dn = ds;
  adapted_backward_input(ctx, pass, Matrix::of(dz1), w.fc1_w, Matrix::of(saved.n), Matrix::of(dn));
  adapted_backward_weight(ctx, pass, Matrix::of(dz1), Matrix::of(saved.n), w.fc1_w);
  const bool one_type = wide == activation;
  const Tensor dr =
      one_type ? gradient_room(ctx, pass, wide, {T, R}) : workspace.take(wide, {T, R});
  const Tensor dr_low = one_type ? dr : gradient_room(ctx, pass, activation, {T, R});
  router_mix_backward(ctx, {.dn_TR = dn,
                            .dr_next_TR = carry.d_out,
                            .r_TR = carry.out,
                            .r_prev_TR = carry.in,
                            .gamma_R = w.gamma.value,
                            .w_R = w.norm_w.value,
                            .rstd_T = saved.rstd,
                            .dr_TR = dr,
                            .dr_low_TR = dr_low,
                            .dr_prev_TR = carry.d_in,
                            .db_dn_R = w.down_b.gradient,
                            .dw_R = w.norm_w.gradient,
                            .dgamma_R = w.gamma.gradient});
  adapted_backward_weight(ctx, pass, Matrix::of(dr_low), Matrix::of(m_TH), w.down_w);
  adapted_backward_input(ctx, pass, Matrix::of(dr_low), w.down_w, Matrix::of(m_TH),
                         Matrix::of(dm_TH));
}

}  // namespace ashlar::nn
