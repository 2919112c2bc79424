#include "ashlar/nn/block.h"

namespace ashlar::nn {

using kernels::Context;

void MergeWeights::take(Arena& arena, const ModelSpec& spec, DType dtype) {
  for (Tensor* w : {&hidden_scale, &hidden_bias, &residual_scale, &residual_bias})
    *w = arena.take(dtype, {spec.hidden_size});
}

void MergeWeights::for_each(const std::string& prefix, Visitor visit) const {
  visit({.name = prefix + "hidden_states_scale", .init = Init::kOne}, hidden_scale);
  visit({.name = prefix + "hidden_states_bias", .init = Init::kZero}, hidden_bias);
  visit({.name = prefix + "residual_scale", .init = Init::kOne}, residual_scale);
  visit({.name = prefix + "residual_bias", .init = Init::kZero}, residual_bias);
}

kernels::MergeParams MergeWeights::params() const {
  return {hidden_scale, hidden_bias, residual_scale, residual_bias};
}

void BlockWeights::take(Arena& arena, const ModelSpec& spec, int64_t layer, DType dtype,
                        Part part) {
  attention.take(arena, spec, dtype, part);
  moe.take(arena, spec, layer, dtype, part);
  if (part != Part::kVectors) return;
  attention_norm = arena.take(dtype, {spec.hidden_size});
  attention_merge.take(arena, spec, dtype);
  moe_norm = arena.take(dtype, {spec.hidden_size});
  moe_merge.take(arena, spec, dtype);
}

void BlockWeights::for_each(const ModelSpec& spec, const std::string& prefix, Visitor visit) const {
  visit({.name = prefix + "input_layernorm.weight", .init = Init::kOne}, attention_norm);
  attention.for_each(spec, prefix + "self_attn.", visit);
  attention_merge.for_each(prefix + "post_attention_residual_scale.", visit);
  visit({.name = prefix + "post_attention_layernorm.weight", .init = Init::kOne}, moe_norm);
  moe.for_each(prefix + "mlp.", visit);
  moe_merge.for_each(prefix + "post_mlp_residual_scale.", visit);
}

BlockSaved BlockSaved::make(Arena& arena, const ModelSpec& spec, const Types& types,
                            TokenCounts tokens, int64_t num_halos) {
  const Shape shape{tokens.stream, spec.hidden_size};
  BlockSaved s;
  s.a = arena.take(types.activation, shape);
  s.attention = AttentionSaved::make(arena, spec, types, tokens.layer, num_halos);
  s.o = arena.take(types.stream, shape);
  s.h = arena.take(types.stream, shape);
  s.m = arena.take(types.activation, shape);
  s.rstd_m = arena.take(types.stream, {tokens.stream});
  s.moe = MoeSaved::make(arena, spec, types, tokens.layer);
  s.e = arena.take(types.stream, shape);
  return s;
}

void LocalRunner::attention_forward(const Context& ctx, const AttentionCall& call,
                                    const BlockSaved& saved) {
  const auto l = size_t(call.layer);
  nn::attention_forward(ctx, call, weights_[l].attention, operands_[l].attention, saved.attention,
                        saved.a, saved.o);
}

void LocalRunner::attention_backward(const Context& ctx, const AttentionCall& call,
                                     const BlockSaved& saved, const Tensor& do_TH,
                                     const Tensor& da_TH) {
  const auto l = size_t(call.layer);
  nn::attention_backward(ctx, call, weights_[l].attention, operands_[l].attention, saved.attention,
                         saved.a, do_TH, gradients_[l].attention, da_TH);
}

void LocalRunner::moe_forward(const Context& ctx, const AttentionCall& call,
                              const BlockSaved& saved, const Tensor& r_prev_TR) {
  const auto l = size_t(call.layer);
  nn::moe_forward(ctx, call.spec, call.types, weights_[l].moe, operands_[l].moe, saved.moe, saved.m,
                  r_prev_TR, saved.e);
}

void LocalRunner::moe_backward(const Context& ctx, const AttentionCall& call,
                               const BlockSaved& saved, const Tensor& r_prev_TR,
                               const Tensor& de_TH, const Tensor& dr_next_TR,
                               const Tensor& dr_prev_TR, const Tensor& dm_TH) {
  const auto l = size_t(call.layer);
  nn::moe_backward(ctx, call.spec, call.types, weights_[l].moe, operands_[l].moe, saved.moe,
                   saved.m, r_prev_TR, de_TH, dr_next_TR, gradients_[l].moe, dr_prev_TR, dm_TH,
                   call.accumulate);
}

}  // namespace ashlar::nn
