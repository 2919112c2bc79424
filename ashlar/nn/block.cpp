#include "ashlar/nn/block.h"

namespace ashlar::nn {

using kernels::Context;

ParameterInfo stream_vector(const LayerSpec& layer, const char* name, double value) {
  return {.name = layer.prefix + name,
          .shape = {layer.model.hidden_size},
          .init = LayerSpec::constant(value),
          .applied = Applied::kStream};
}

void MergeWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  visit({.weight = &hidden_scale, .logical = {stream_vector(layer, "hidden_states_scale", 1.0)}});
  visit({.weight = &hidden_bias, .logical = {stream_vector(layer, "hidden_states_bias", 0.0)}});
  visit({.weight = &residual_scale, .logical = {stream_vector(layer, "residual_scale", 1.0)}});
  visit({.weight = &residual_bias, .logical = {stream_vector(layer, "residual_bias", 0.0)}});
}

kernels::MergeParams MergeWeights::params() const {
  return {hidden_scale.value, hidden_bias.value, residual_scale.value, residual_bias.value};
}

kernels::MergeParams MergeWeights::gradients() const {
  return {hidden_scale.gradient, hidden_bias.gradient, residual_scale.gradient,
          residual_bias.gradient};
}

void BlockWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto norm = [&](const char* name, Weight& weight) {
    visit({.weight = &weight, .logical = {stream_vector(layer, name, 1.0)}});
  };
  norm("input_layernorm.weight", attention_norm);
  attention.list(layer.under("self_attn."), visit);
  attention_merge.list(layer.under("post_attention_residual_scale."), visit);
  norm("post_attention_layernorm.weight", moe_norm);
  moe.list(layer.under("mlp."), visit);
  moe_merge.list(layer.under("post_mlp_residual_scale."), visit);
}

BlockSaved BlockSaved::make(Arena& arena, const BlockWeights& weights, const Types& types,
                            TokenCounts tokens, int64_t num_halos) {
  const Shape shape{tokens.stream, weights.attention.shape.H};
  BlockSaved s;
  s.a = arena.take(types.activation, shape);
  s.attention =
      AttentionSaved::make(arena, weights.attention.shape, types, tokens.layer, num_halos);
  s.o = arena.take(types.stream, shape);
  s.h = arena.take(types.stream, shape);
  s.m = arena.take(types.activation, shape);
  s.rstd_m = arena.take(types.stream, {tokens.stream});
  s.moe = MoeSaved::make(arena, weights.moe, types, tokens.layer);
  s.e = arena.take(types.stream, shape);
  return s;
}

void LocalRunner::attention_forward(const Context& ctx, const AttentionCall& call,
                                    const BlockSaved& saved) {
  nn::attention_forward(ctx, call, weights_[size_t(call.layer)].attention, saved.attention, saved.a,
                        saved.o);
}

void LocalRunner::attention_backward(const Context& ctx, const AttentionCall& call,
                                     const BlockSaved& saved, const Tensor& do_TH,
                                     const Tensor& da_TH) {
  nn::attention_backward(ctx, call, weights_[size_t(call.layer)].attention, saved.attention,
                         saved.a, do_TH, da_TH);
}

void LocalRunner::moe_forward(const Context& ctx, const AttentionCall& call,
                              const BlockSaved& saved, const Tensor& r_prev_TR) {
  nn::moe_forward(ctx, call.types, *call.exchanges.experts, weights_[size_t(call.layer)].moe,
                  saved.moe, saved.m, r_prev_TR, saved.e);
}

void LocalRunner::moe_backward(const Context& ctx, const AttentionCall& call,
                               const BlockSaved& saved, const Tensor& r_prev_TR,
                               const Tensor& de_TH, const Tensor& dr_next_TR,
                               const Tensor& dr_prev_TR, const Tensor& dm_TH) {
  nn::moe_backward(ctx, call.types, *call.exchanges.experts, weights_[size_t(call.layer)].moe,
                   saved.moe, saved.m, r_prev_TR, de_TH, dr_next_TR, dr_prev_TR, dm_TH,
                   call.accumulate);
}

}  // namespace ashlar::nn
