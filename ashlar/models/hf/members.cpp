#include "ashlar/models/hf/members.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::models {
namespace {

constexpr std::string_view kOfTheFile = "says how the file was made, or by whom";
constexpr std::string_view kProgram = "says how another program runs the model, not what it makes";
constexpr std::string_view kOutputs = "says what else another program puts out";
constexpr std::string_view kTraining = "is for training, where a recipe states its own";
constexpr std::string_view kGeneration = "is for generation, where flags state it";
constexpr std::string_view kOtherUse = "is for classifiers, or for encoders and their decoders";
constexpr std::string_view kText = "is for tokenizers";

constexpr HarmlessMember kHarmless[] = {
    {"_attn_implementation", kProgram},
    {"_attn_implementation_autoset", kProgram},
    {"_commit_hash", kOfTheFile},
    {"_experts_implementation", kProgram},
    {"_flash_attn_2_enabled", kProgram},
    {"_from_model_config", kOfTheFile},
    {"_name_or_path", kOfTheFile},
    {"architectures", "names classes; model_type and the tensors say which family it is"},
    {"attn_implementation", kProgram},
    {"auto_map", kOfTheFile},
    {"bad_words_ids", kGeneration},
    {"begin_suppress_tokens", kGeneration},
    {"block_size", "says how many tokens a program takes at a time, up to rounding", "minimax"},
    {"chunk_size_feed_forward", kProgram},
    {"decoder_start_token_id", kOtherUse},
    {"diversity_penalty", kGeneration},
    {"do_sample", kGeneration},
    {"dtype", "is the type of the tensors, which their own headers state"},
    {"early_stopping", kGeneration},
    {"encoder_no_repeat_ngram_size", kGeneration},
    {"exponential_decay_length_penalty", kGeneration},
    {"finetuning_task", kOtherUse},
    {"forced_bos_token_id", kGeneration},
    {"forced_eos_token_id", kGeneration},
    {"full_attention_interval", "is read where layer_types is not there", "qwen3_next"},
    {"id2label", kOtherUse},
    {"initializer_range", kTraining},
    {"intermediate_size", "is read where a block has a feed-forward of that width",
     "qwen3_moe qwen3_next"},
    {"is_decoder", kOtherUse},
    {"label2id", kOtherUse},
    {"length_penalty", kGeneration},
    {"max_length", kGeneration},
    {"max_window_layers", "is read where layer_types is not there", "qwen2 qwen3 qwen3_moe"},
    {"min_length", kGeneration},
    {"model_max_length", kText},
    {"name_or_path", kOfTheFile},
    {"no_repeat_ngram_size", kGeneration},
    {"num_beam_groups", kGeneration},
    {"num_beams", kGeneration},
    {"num_labels", kOtherUse},
    {"num_return_sequences", kGeneration},
    {"output_attentions", kOutputs},
    {"output_hidden_states", kOutputs},
    {"output_router_logits", kOutputs},
    {"output_scores", kOutputs},
    {"prefix", kGeneration},
    {"pretraining_tp", "says how products may be cut, which makes the same sums"},
    {"problem_type", kOtherUse},
    {"remove_invalid_values", kGeneration},
    {"repetition_penalty", kGeneration},
    {"residual_in_fp32", "holds here unless train.stream is bf16", "zaya"},
    {"return_dict", kOutputs},
    {"return_dict_in_generate", kOutputs},
    {"router_aux_loss_coef", kTraining},
    {"router_z_loss_coef", kTraining},
    {"sep_token_id", kText},
    {"sliding_window", "is read where use_sliding_window is true", "qwen2 qwen3 qwen3_moe"},
    {"suppress_tokens", kGeneration},
    {"task_specific_params", kGeneration},
    {"temperature", kGeneration},
    {"tf_legacy_loss", kTraining},
    {"tie_encoder_decoder", kOtherUse},
    {"tokenizer_class", kText},
    {"top_k", kGeneration},
    {"top_p", kGeneration},
    {"torch_dtype", "is the type of the tensors, which their own headers state"},
    {"torchscript", kProgram},
    {"transformers_version", kOfTheFile},
    {"typical_p", kGeneration},
    {"unsloth_fixed", kOfTheFile},
    {"unsloth_version", kOfTheFile},
    {"use_bfloat16", kProgram},
    {"use_cache", kProgram},
};

constexpr std::string_view kNoBias = "no such bias here";
constexpr std::string_view kNoScale = "no such factor here";
constexpr std::string_view kNoNorm = "no other norms here";
constexpr std::string_view kWholeHead = "RoPE as in the other families here";
constexpr std::string_view kSoftmaxRouter = "experts are weighed by a softmax";
constexpr std::string_view kSequential = "the feed-forward reads what attention has added";
constexpr std::string_view kSwiglu = "the feed-forward is SwiGLU";

constexpr NeutralMember kNeutral[] = {
    {"activation_function", R"(["silu", "swish"])", kSwiglu},
    {"add_cross_attention", "[false]", "a decoder alone"},
    {"alibi", "[false]", kWholeHead},
    {"attention_bias", "[false]", "this family has no such bias"},
    {"attention_chunk_size", "[]", "attention over all tokens, or over a window"},
    {"attention_multiplier", "[]", "scores are divided by the root of head_dim"},
    {"attention_out_bias", "[false]", kNoBias},
    {"attn_logit_softcapping", "[]", "scores go into the softmax as they are"},
    {"attn_output_gate", "[true]", "this family has that gate", "qwen3_next"},
    {"attn_output_gate", "[false]", "no such gate here"},
    {"attn_type_list", "[]", "layer_types states the mixers"},
    {"bias", "[false]", "attention_bias states biases"},
    {"clip_qkv", "[]", "queries, keys and values as they are"},
    {"dim_model_base", "[]", kNoScale},
    {"embedding_multiplier", "[1]", kNoScale},
    {"embedding_scale", "[1]", kNoScale},
    {"final_logit_softcapping", "[]", "logits as they are"},
    {"first_k_dense_replace", "[0]", "mlp_only_layers states blocks without experts"},
    {"hidden_activation", R"(["silu", "swish"])", kSwiglu},
    {"is_encoder_decoder", "[false]", "a decoder alone"},
    {"layernorm_full_attention_alpha", "[1]", "full_attn_alpha_factor states it"},
    {"layernorm_full_attention_beta", "[1]", "full_attn_beta_factor states it"},
    {"layernorm_linear_attention_alpha", "[1]", "linear_attn_alpha_factor states it"},
    {"layernorm_linear_attention_beta", "[1]", "linear_attn_beta_factor states it"},
    {"layernorm_mlp_alpha", "[1]", "mlp_alpha_factor states it"},
    {"layernorm_mlp_beta", "[1]", "mlp_beta_factor states it"},
    {"lm_head_bias", "[false]", kNoBias},
    {"lm_head_multiplier", "[1]", kNoScale},
    {"logit_scale", "[1]", kNoScale},
    {"logits_scaling", "[1]", kNoScale},
    {"mlp_bias", "[false]", kNoBias},
    {"mlp_hidden_act", R"(["silu", "swish"])", kSwiglu},
    {"n_group", "[1]", kSoftmaxRouter},
    {"n_shared_experts", "[0]", "no shared experts here"},
    {"no_bias", "[true]", "attention_bias states biases"},
    {"no_rope_layer_interval", "[0]", "every block has RoPE"},
    {"no_rope_layers", "[1]", "every block has RoPE"},
    {"num_shared_experts", "[0]", "no shared experts here"},
    {"parallel_attn", "[false]", kSequential},
    {"per_layer_config", "[]", "all blocks of a kind are alike"},
    {"position_embedding_type", R"(["rope", "rotary"])", kWholeHead},
    {"postnorm", "[true]", "the norm of a branch's input goes on", "minimax"},
    {"pruned_heads", "[{}]", "all heads are there"},
    {"qk_layernorm", "[false]", kNoNorm},
    {"qkv_bias", "[false]", "attention_bias states biases"},
    {"quantization_config", "[]", "no quantisation: take the BF16 or F32 release of the model"},
    {"query_pre_attn_scalar", "[]", "scores are divided by the root of head_dim"},
    {"residual_multiplier", "[1]", kNoScale},
    {"rope_interleave", "[false]", kWholeHead},
    {"rope_interleaved", "[false]", kWholeHead},
    {"rotary_interleaved", "[false]", kWholeHead},
    {"routed_scaling_factor", "[1]", kSoftmaxRouter},
    {"scale_depth", "[]", kNoScale},
    {"scale_emb", "[1]", kNoScale},
    {"scoring_func", R"(["softmax"])", kSoftmaxRouter},
    {"text_config", "[]", "the config of the language model itself"},
    {"topk_group", "[1]", kSoftmaxRouter},
    {"use_alibi", "[false]", kWholeHead},
    {"use_bias", "[false]", "attention_bias states biases"},
    {"use_mrope", "[false]", kWholeHead},
    {"use_parallel_residual", "[false]", kSequential},
    {"use_qk_layernorm", "[false]", kNoNorm},
    {"use_qk_norm", "[true]", "queries and keys are normed here", "qwen3 qwen3_moe qwen3_next"},
    {"use_qk_norm", "[false]", "queries and keys are not normed here"},
    {"use_rope", "[true]", "every block has RoPE"},
};

// Values may differ in being an integer or not.
bool is_one_of(const Json& value, const Json& values) {
  if (value.is_array())
    return std::ranges::all_of(value, [&](const Json& entry) { return is_one_of(entry, values); });
  return std::any_of(values.begin(), values.end(), [&](const Json& neutral) {
    return value.is_boolean() == neutral.is_boolean() && value == neutral;
  });
}

bool is_in(std::string_view families, std::string_view model_type) {
  return families.empty() || std::ranges::count(split(families, ' '), model_type) > 0;
}

std::string expected_of(const NeutralMember& member) {
  const Json values = Json::parse(member.values);
  std::string text;
  for (const Json& value : values) text += fmt::format("{} or ", value.dump());
  return fmt::format("{}no such key: {}", text, member.why);
}

}  // namespace

std::span<const HarmlessMember> harmless_members() {
  return kHarmless;
}
std::span<const NeutralMember> neutral_members() {
  return kNeutral;
}

std::vector<std::string> check_other_members(const HfFields& fields, std::string_view model_type) {
  std::vector<std::string> names = fields.unasked();
  for (const NeutralMember& member : kNeutral) {
    const std::string name(member.name);
    if (!is_in(member.families, model_type)) continue;
    if (std::erase(names, name) > 0 && !is_one_of(fields.at(name), Json::parse(member.values)))
      fields.fail(name, expected_of(member));
  }
  for (const HarmlessMember& member : kHarmless)
    if (is_in(member.families, model_type)) std::erase(names, std::string(member.name));
  return names;
}

}  // namespace ashlar::models
