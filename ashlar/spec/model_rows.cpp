// The rows of [model], and of the other keys that decide a model's arithmetic.
#include "ashlar/spec/key_rows.h"

namespace ashlar {
namespace {

using Rows = std::vector<Key>;

}  // namespace

Rows model_size_rows() {
  constexpr auto m = &Recipe::model;
  using M = ModelKeys;
  return {
      required(integer("model.vocab_size", m, &M::vocab_size, {2, 2147483647},
                       "rows of the embedding and of the head")),
      required(integer("model.hidden_size", m, &M::hidden_size, kWidth, "width of the stream")),
      required(integer("model.num_hidden_layers", m, &M::num_hidden_layers, kLayerCount,
                       "blocks of one mixer and one feed-forward")),
      required(integer("model.num_attention_heads", m, &M::num_attention_heads, kHeadCount,
                       "query heads")),
      required(integer("model.num_key_value_heads", m, &M::num_key_value_heads, kHeadCount,
                       "key and value heads; divides the query heads")),
      required(integer("model.head_dim", m, &M::head_dim, {1, kMaxHeadDim},
                       "channels of a head; in cca, times key and value heads it must be even")),
      shape(integer("model.num_experts", m, &M::num_experts, {0, 4096},
                    "experts of a moe feed-forward; an mlp router adds a skip class")),
      shape(integer("model.moe_intermediate_size", m, &M::moe_intermediate_size, {0, 131072},
                    "width inside an expert")),
      shape(word("model.router", m, &M::router, {kRouterNames.begin(), kRouterNames.end()},
                 "router of a moe feed-forward: mlp is ZAYA1's, which chooses one expert or none; "
                 "linear is one matrix and a softmax, as in Mixtral and Qwen3-MoE")),
      shape(integer("model.router_hidden_size", m, &M::router_hidden_size, {0, 131072},
                    "width of an mlp router")),
      shape(boolean("model.router_expert_bias", m,
                    inside(&M::linear_router, &LinearRouterSpec::expert_bias),
                    "a linear router has balancing biases, added to the scores of choice only "
                    "([moe.balance])")),
      shape(integer("model.shared_expert_intermediate_size", m, &M::shared_expert_intermediate_size,
                    {0, 131072},
                    "width inside an expert that every token of a moe feed-forward takes besides; "
                    "0: none")),
      shape(boolean("model.shared_expert_gate", m, &M::shared_expert_gate,
                    "the shared expert's output is weighted by the sigmoid of a linear gate")),
      shape(integer("model.intermediate_size", m, &M::intermediate_size, {0, 131072},
                    "width inside a mlp feed-forward")),
      shape(key(
          "model.layer_types", KeyType::kLayers, m, &M::layer_types,
          "type of each block, MIXER+FEED_FORWARD or a name: hybrid is cca+moe, "
          "hybrid_sliding the same with a window, full_attention is attention+mlp, "
          "sliding_attention the same with a window; linear_attention is linear+mlp; alternate: "
          "hybrid_sliding on even blocks")),
      shape(word("model.qk_norm", m, &M::qk_norm, {kQkNormNames.begin(), kQkNormNames.end()},
                 "norm of each head's queries and keys in attention; cca has its own")),
      shape(boolean("model.attention_output_gate", m, &M::attention_output_gate,
                    "the output of attention is weighted, channel by channel, by the sigmoid of a "
                    "product")),
      shape(word("model.attention_bias", m, &M::attention_bias,
                 {kAttentionBiasNames.begin(), kAttentionBiasNames.end()},
                 "projections of attention that have a bias: of queries, keys and values, as in "
                 "Qwen2, or of the output too, as attention_bias of Llama and Qwen3")),
      shape(word("model.linear_recurrence", m, inside(&M::linear, &LinearSpec::kind),
                 {kLinearKindNames.begin(), kLinearKindNames.end()},
                 "how the state of a linear mixer changes: basic (no decay), lightning and "
                 "retention (a fixed decay of each head), gla (a gate of each channel), or "
                 "gated_delta")),
      shape(integer(
          "model.linear_num_key_heads", m, inside(&M::linear, &LinearSpec::num_key_heads),
          {0, 1024},
          "heads of queries and keys of a linear mixer; default model.num_attention_heads")),
      shape(integer("model.linear_num_value_heads", m,
                    inside(&M::linear, &LinearSpec::num_value_heads), {0, 1024},
                    "heads of values of a linear mixer, each with a state; a multiple of its key "
                    "heads; default as many")),
      shape(integer("model.linear_key_head_dim", m, inside(&M::linear, &LinearSpec::key_head_dim),
                    {0, kMaxHeadDim},
                    "channels of a query or key head of a linear mixer; default model.head_dim")),
      shape(integer("model.linear_value_head_dim", m,
                    inside(&M::linear, &LinearSpec::value_head_dim), {0, kMaxHeadDim},
                    "channels of a value head of a linear mixer; default those of a key head")),
      shape(integer("model.linear_conv_kernel_dim", m, inside(&M::linear, &LinearSpec::conv_taps),
                    {0, 8},
                    "taps of a linear mixer's convolution on queries, keys and values; 0: none")),
      shape(word("model.residual", m, &M::residual, {kResidualNames.begin(), kResidualNames.end()},
                 "how branches join the stream: scaled by learned vectors, which is the default "
                 "where a mixer is cca; plain; or normed, as in MiniMax: alpha times the branch's "
                 "normed input plus beta times what it makes of it")),
      shape(boolean("model.tie_word_embeddings", m, &M::tie_word_embeddings,
                    "the head is the embedding; false: it has weights of its own")),
  };
}

Rows model_choice_rows() {
  constexpr auto m = &Recipe::model;
  using M = ModelKeys;
  return {
      integer("model.num_experts_per_tok", m,
              inside(&M::linear_router, &LinearRouterSpec::num_chosen), {1, 4096},
              "experts that a linear router chooses for a token"),
      boolean("model.norm_topk_prob", m, inside(&M::linear_router, &LinearRouterSpec::renormalize),
              "the weights of a token's experts are divided by their sum"),
      boolean("model.router_pre_softmax", m,
              inside(&M::linear_router, &LinearRouterSpec::pre_softmax),
              "a linear router's softmax is over all experts, before the choice; false: over the "
              "chosen ones, after it"),
      number("model.routed_scaling_factor", m, inside(&M::linear_router, &LinearRouterSpec::scale),
             kPositive, "factor on the weights of a token's experts"),
      word("model.linear_feature_map", m, inside(&M::linear, &LinearSpec::map),
           {kLinearMapNames.begin(), kLinearMapNames.end()},
           "what queries and keys of a linear mixer go through; lightning has silu, of values too"),
      boolean("model.linear_causal", m, inside(&M::linear, &LinearSpec::causal),
              "tokens of a linear mixer see none behind them; false, with linear_recurrence basic: "
              "they see their whole document, as in an encoder"),
      number("model.linear_attn_alpha_factor", m, inside(&M::linear_attn, &ResidualFactors::alpha),
             kNotNegative, "alpha of residual normed at linear mixers"),
      number("model.linear_attn_beta_factor", m, inside(&M::linear_attn, &ResidualFactors::beta),
             kNotNegative, "its beta"),
      number("model.full_attn_alpha_factor", m, inside(&M::full_attn, &ResidualFactors::alpha),
             kNotNegative, "alpha of residual normed at other mixers"),
      number("model.full_attn_beta_factor", m, inside(&M::full_attn, &ResidualFactors::beta),
             kNotNegative, "its beta"),
      number("model.mlp_alpha_factor", m, inside(&M::mlp, &ResidualFactors::alpha), kNotNegative,
             "alpha of residual normed at feed-forwards"),
      number("model.mlp_beta_factor", m, inside(&M::mlp, &ResidualFactors::beta), kNotNegative,
             "its beta"),
      boolean("model.zero_centered_norm", m, &M::zero_centered_norm,
              "norms of the stream, and of queries and keys, multiply by 1 + their weight"),
      number("model.rms_norm_eps", m, &M::rms_norm_eps, {0, 1, true}, "guard of every RMSNorm"),
      number("model.partial_rotary_factor", m, &M::partial_rotary_factor, {0, 1, true},
             "share of a head that RoPE rotates, an even number of channels; default 0.5 where a "
             "mixer is cca, else 1"),
      number("model.rope_theta", m, &M::rope_theta, kPositive,
             "RoPE base of blocks without window"),
      number("model.rope_theta_sliding", m, &M::rope_theta_sliding, kPositive,
             "RoPE base of sliding blocks"),
      word("model.rope_type", m, inside(&M::rope_scaling, &RopeScalingSpec::type),
           {kRopeTypeNames.begin(), kRopeTypeNames.end()},
           "RoPE scaling of attention for contexts longer than the original ones, as transformers "
           "has it; default llama3 where rope_original_positions is above 0, else default: none"),
      number("model.rope_factor", m, inside(&M::rope_scaling, &RopeScalingSpec::factor), {1, kNone},
             "how many times longer contexts become: what frequencies are divided by, all "
             "(linear) or low ones (yarn, llama3), or what raises the base (dynamic)"),
      integer("model.rope_original_positions", m,
              inside(&M::rope_scaling, &RopeScalingSpec::original_positions), {0, 1 << 30},
              "original number of positions, of dynamic, yarn and llama3; 0: none"),
      number("model.rope_low_freq_factor", m,
             inside(&M::rope_scaling, &RopeScalingSpec::low_freq_factor), kPositive,
             "of llama3: wavelengths above original / this are divided"),
      number("model.rope_high_freq_factor", m,
             inside(&M::rope_scaling, &RopeScalingSpec::high_freq_factor), kPositive,
             "of llama3: wavelengths below original / this stay"),
      number("model.rope_beta_fast", m, inside(&M::rope_scaling, &RopeScalingSpec::beta_fast),
             kPositive,
             "of yarn: frequencies that turn more often than this over the original positions "
             "stay"),
      number("model.rope_beta_slow", m, inside(&M::rope_scaling, &RopeScalingSpec::beta_slow),
             kPositive, "of yarn: those that turn less often are divided"),
      number("model.rope_attention_factor", m,
             inside(&M::rope_scaling, &RopeScalingSpec::attention_factor), kNotNegative,
             "of yarn: factor on rotated queries and on keys; 0: 1 + 0.1 ln(rope_factor)"),
      boolean("model.rope_truncate", m, inside(&M::rope_scaling, &RopeScalingSpec::truncate),
              "of yarn: the channels between which frequencies pass from one to the other are "
              "rounded outwards"),
      integer("model.sliding_window", m, &M::sliding_window, {0, 1 << 30},
              "tokens that a sliding block sees, the token itself included; 0: none"),
      integer("model.max_position_embeddings", m, &M::max_position_embeddings, {1, 1 << 30},
              "longest sequence that the model is meant for"),
      integer("model.pad_token_id", m, &M::pad_token_id, kTokenId,
              "padding id, whose row of the embedding gets no gradient from the input; -1: none"),
      integer("model.bos_token_id", m, &M::bos_token_id, kTokenId, "first id of a text; -1: none"),
      ids("model.eos_token_id", m, &M::eos_token_ids,
          "last id of a text, or a list of ids of which each ends one; -1: none"),
      boolean("model.head_fp32", m, &M::head_fp32,
              "head product in fp32 even where the rest computes in bf16"),
      number("model.qk_norm_eps", m, &M::qk_norm_eps, {0, 1},
             "guard of the QK norm of cca, under the root"),
      word("moe.skip_output", m, &M::skip_output, {"zero", "identity"},
           "what a token gets from the skip class: nothing, or its input times the probability"),
  };
}

}  // namespace ashlar
