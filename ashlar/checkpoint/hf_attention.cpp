#include "ashlar/checkpoint/hf_attention.h"

namespace ashlar::checkpoint {
namespace {

void read_sizes(const HfFields& fields, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  model.vocab_size = read("vocab_size", kMaxSize);
  model.hidden_size = read("hidden_size", kMaxSize);
  model.num_hidden_layers = read("num_hidden_layers", kMaxLayers);
  model.num_attention_heads = read("num_attention_heads", kMaxHeads);
  model.num_key_value_heads = model.num_attention_heads;
  config.keys["num_key_value_heads"] = "num_attention_heads";
  if (fields.has("num_key_value_heads"))
    model.num_key_value_heads = read("num_key_value_heads", kMaxHeads);
  if (fields.has("head_dim")) {
    model.head_dim = read("head_dim", kMaxHeads);
    return;
  }
  if (model.hidden_size % model.num_attention_heads != 0)
    fields.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads, {}, or head_dim beside them",
                            model.num_attention_heads));
  model.head_dim = model.hidden_size / model.num_attention_heads;
  config.keys["head_dim"] = "hidden_size / num_attention_heads";
}

void read_rotary_factor(const HfFields& fields, const HfDefaults& defaults, ModelKeys& model) {
  if (defaults.rotary_factor == 1.0)
    fields.only("partial_rotary_factor", 1.0, "these models rotate all of a head");
  model.partial_rotary_factor =
      fields.positive_or("partial_rotary_factor", model.partial_rotary_factor);
}

// An object {rope_type or type, ...} of either version.
void read_rope_object(const HfFields& rope, const HfDefaults& defaults, ModelKeys& model) {
  model.rope_theta = rope.positive_or("rope_theta", model.rope_theta);
  read_rotary_factor(rope, defaults, model);
  const char* type = rope.has("rope_type") ? "rope_type" : "type";
  if (!rope.has(type) || rope.at(type) == "default") return;
  if (rope.at(type) != "llama3") rope.fail(type, "\"default\" or \"llama3\"");
  model.rope_factor = rope.positive_or("factor", 1.0);
  model.rope_low_freq_factor = rope.positive_or("low_freq_factor", 1.0);
  model.rope_high_freq_factor = rope.positive_or("high_freq_factor", 4.0);
  model.rope_original_positions = rope.integer("original_max_position_embeddings", 1, INT32_MAX);
}

void read_rope(const HfFields& fields, const HfDefaults& defaults, ModelKeys& model) {
  model.partial_rotary_factor = defaults.rotary_factor;
  read_rotary_factor(fields, defaults, model);
  model.rope_theta = fields.positive_or("rope_theta", defaults.rope_theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    if (!fields.at(key).is_object()) fields.fail(key, "an object with a rope_type, or null");
    const HfFields rope(fields.at(key), fmt::format("{}: {}", fields.source(), key));
    read_rope_object(rope, defaults, model);
  }
  model.rope_theta_sliding = model.rope_theta;
}

}  // namespace

HfConfig read_attention_config(const HfFields& fields, const HfDefaults& defaults) {
  for (const char* key : {"attention_bias", "mlp_bias"})
    fields.only(key, false, "projections without bias are supported");
  fields.only("hidden_act", "silu", "the feed-forward is SwiGLU");
  fields.only("attention_dropout", 0, "dropout is not supported");
  if (fields.has("quantization_config"))
    fields.fail("quantization_config",
                "no quantisation: take the BF16 or F32 release of the model");
  HfConfig config;
  ModelKeys& model = config.model;
  read_sizes(fields, config);
  read_rope(fields, defaults, model);
  model.layer_types.assign(size_t(model.num_hidden_layers), LayerType::kFullAttention);
  model.residual = Residual::kPlain;
  model.rms_norm_eps = fields.positive_or("rms_norm_eps", defaults.norm_eps);
  model.max_position_embeddings =
      fields.integer_or("max_position_embeddings", model.max_position_embeddings, 1, INT32_MAX);
  model.tie_word_embeddings =
      fields.has("tie_word_embeddings") && fields.at("tie_word_embeddings") == true;
  model.pad_token_id = token_id(fields, "pad_token_id", -1);
  model.bos_token_id = token_id(fields, "bos_token_id", -1);
  model.eos_token_id = token_id(fields, "eos_token_id", -1);
  const auto key = [&](const char* name) { return config.key_of(name); };
  const std::string block = "model.layers.0.";
  config.sizes = {
      {block + "self_attn.q_proj.weight", 0, key("num_attention_heads") + " * " + key("head_dim"),
       model.q_dim()},
      {block + "self_attn.k_proj.weight", 0, key("num_key_value_heads") + " * " + key("head_dim"),
       model.kv_dim()},
  };
  return config;
}

bool states_attention_config(const ModelKeys& keys, const HfArithmetic& arithmetic) {
  return keys.residual == arithmetic.residual && keys.qk_norm == arithmetic.norm &&
         keys.attention_output_gate == arithmetic.gated &&
         keys.zero_centered_norm == arithmetic.gated &&
         (arithmetic.gated || keys.rotary_dim() == keys.head_dim);
}

void write_attention_config(const ModelKeys& keys, Json& json) {
  json["hidden_act"] = "silu";
  json["initializer_range"] = 0.02;
  json["num_hidden_layers"] = keys.num_hidden_layers;
  json["rms_norm_eps"] = keys.rms_norm_eps;
  json["rope_theta"] = keys.rope_theta;
  json["use_cache"] = true;
  Json rope = {{"rope_type", "default"}};
  json["rope_scaling"] = nullptr;
  if (keys.rope_original_positions > 0) {
    rope = {{"rope_type", "llama3"},
            {"factor", keys.rope_factor},
            {"low_freq_factor", keys.rope_low_freq_factor},
            {"high_freq_factor", keys.rope_high_freq_factor},
            {"original_max_position_embeddings", keys.rope_original_positions}};
    json["rope_scaling"] = rope;
  }
  rope["rope_theta"] = keys.rope_theta;
  json["rope_parameters"] = rope;
}

}  // namespace ashlar::checkpoint
