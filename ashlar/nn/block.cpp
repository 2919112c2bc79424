#include "ashlar/nn/block.h"

namespace ashlar::nn {

ParameterInfo stream_vector(const LayerSpec& layer, const char* name, double value) {
  return {.name = layer.prefix + name,
          .shape = {layer.model.hidden_size},
          .init = LayerSpec::constant(value),
          .applied = Applied::kStream};
}

ParameterInfo norm_weight(const LayerSpec& layer, const char* name) {
  return stream_vector(layer, name, 1.0 - layer.model.norm_weight_offset());
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

void Block::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto norm = [&](const char* name, Weight& weight) {
    visit({.weight = &weight, .logical = {norm_weight(layer, name)}});
  };
  norm("input_layernorm.weight", mixer_norm);
  mixer->list(layer.under("self_attn."), visit);
  const bool scaled = layer.of_block().residual == Residual::kScaled;
  if (scaled) mixer_merge.list(layer.under("post_attention_residual_scale."), visit);
  norm("post_attention_layernorm.weight", feed_forward_norm);
  feed_forward->list(layer.under("mlp."), visit);
  if (scaled) feed_forward_merge.list(layer.under("post_mlp_residual_scale."), visit);
}

BlockSaved BlockSaved::make(Arena& arena, Arena& arena_of_h, int64_t hidden_size,
                            const Types& types, int64_t num_tokens, const Tensor& output) {
  const Shape shape{num_tokens, hidden_size};
  BlockSaved s;
  s.a = arena.take(types.activation, shape);
  s.o = output ? output : arena.take(types.activation, shape);
  s.h = arena_of_h.take(types.stream, shape);
  s.m = arena.take(types.activation, shape);
  s.rstd_m = arena.take(types.wide, {num_tokens});
  s.e = output ? output : arena.take(types.activation, shape);
  return s;
}

}  // namespace ashlar::nn
