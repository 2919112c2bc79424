#include "ashlar/spec/zaya_spec.h"

#include "ashlar/core/error.h"

namespace ashlar {

ModelSpec model_of(const ZayaSpec& spec) {
  ModelSpec model;
  model.vocab_size = spec.vocab_size;
  model.hidden_size = spec.hidden_size;
  model.max_positions = spec.max_position_embeddings;
  model.norm_eps = spec.rms_norm_eps;
  model.head_fp32 = spec.head_fp32;
  model.pad_token_id = spec.pad_token_id;
  model.bos_token_id = spec.bos_token_id;
  model.eos_token_id = spec.eos_token_id;
  for (const LayerType type : spec.layer_types) {
    const bool sliding = type == LayerType::kHybridSliding;
    model.blocks.push_back(
        {.mixer = {.num_query_heads = spec.num_attention_heads,
                   .num_key_heads = spec.num_key_value_heads,
                   .head_dim = spec.head_dim,
                   .rotary_factor = spec.partial_rotary_factor,
                   .window = sliding ? spec.sliding_window : 0,
                   .rope_theta = sliding ? spec.rope_theta_sliding : spec.rope_theta,
                   .qk_norm_eps = spec.qk_norm_eps},
         .feed_forward = {.num_experts = spec.num_experts,
                          .width = spec.moe_intermediate_size,
                          .router_width = spec.router_hidden_size,
                          .skip_output = spec.skip_output}});
  }
  return model;
}

ZayaSpec zaya_of(const ModelSpec& model) {
  const CcaSpec& mixer = model.blocks.at(0).mixer;
  const MoeSpec& experts = model.blocks[0].feed_forward;
  ZayaSpec spec;
  spec.vocab_size = model.vocab_size;
  spec.hidden_size = model.hidden_size;
  spec.num_hidden_layers = model.num_blocks();
  spec.num_attention_heads = mixer.num_query_heads;
  spec.num_key_value_heads = mixer.num_key_heads;
  spec.head_dim = mixer.head_dim;
  spec.num_experts = experts.num_experts;
  spec.moe_intermediate_size = experts.width;
  spec.router_hidden_size = experts.router_width;
  spec.rms_norm_eps = model.norm_eps;
  spec.partial_rotary_factor = mixer.rotary_factor;
  spec.max_position_embeddings = model.max_positions;
  spec.pad_token_id = model.pad_token_id;
  spec.bos_token_id = model.bos_token_id;
  spec.eos_token_id = model.eos_token_id;
  spec.skip_output = experts.skip_output;
  spec.head_fp32 = model.head_fp32;
  spec.qk_norm_eps = mixer.qk_norm_eps;
  // The first block without a window says what a hybrid block is, the first other kind what a
  // sliding one is.
  const CcaSpec *hybrid = nullptr, *sliding = nullptr;
  for (const BlockSpec& block : model.blocks)
    if (block.mixer.window == 0 && !hybrid) hybrid = &block.mixer;
  for (const BlockSpec& block : model.blocks)
    if (!sliding && (!hybrid || block.mixer != *hybrid)) sliding = &block.mixer;
  if (hybrid) spec.rope_theta = hybrid->rope_theta;
  if (sliding) spec.rope_theta_sliding = sliding->rope_theta, spec.sliding_window = sliding->window;
  for (const BlockSpec& block : model.blocks)
    spec.layer_types.push_back(hybrid && block.mixer == *hybrid ? LayerType::kHybrid
                                                                : LayerType::kHybridSliding);
  const ModelSpec again = model_of(spec);
  for (size_t l = 0; l < model.blocks.size(); ++l)
    ASHLAR_REQUIRE(again.blocks[l] == model.blocks[l], kConfig,
                   "block {} is not one of ZAYA1, whose blocks are alike but for one window and "
                   "one RoPE base",
                   l);
  return spec;
}

}  // namespace ashlar
