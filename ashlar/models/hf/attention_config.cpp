#include "ashlar/models/hf/attention_config.h"

#include <algorithm>

#include "ashlar/models/hf/rope_config.h"

namespace ashlar::models {
namespace {

void read_sizes(const HfFields& fields, const HfDefaults& defaults, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  model.vocab_size = read("vocab_size", kMaxSize);
  model.hidden_size = read("hidden_size", kMaxSize);
  model.num_hidden_layers = read("num_hidden_layers", kMaxLayers);
  model.num_attention_heads = read("num_attention_heads", kMaxHeads);
  model.num_key_value_heads = model.num_attention_heads;
  config.keys["num_key_value_heads"] = "num_attention_heads";
  const std::string heads = "num_key_value_heads", dim = "head_dim";
  if (!defaults.null_key_heads) fields.require_not_null(heads, "a number of heads");
  if (!defaults.null_head_dim) fields.require_not_null(dim, "a number of channels");
  if (fields.has(heads)) {
    model.num_key_value_heads = read("num_key_value_heads", kMaxHeads);
  } else if (defaults.key_heads > 0 && !fields.is_null(heads)) {
    model.num_key_value_heads = defaults.key_heads;
    config.keys[heads] = fmt::format("{} (not stated)", heads);
  }
  if (fields.has(dim)) {
    model.head_dim = read("head_dim", kMaxHeads);
    return;
  }
  if (defaults.head_dim > 0) {
    model.head_dim = defaults.head_dim;
    config.keys[dim] = fmt::format("{} (not stated)", dim);
    return;
  }
  if (model.hidden_size % model.num_attention_heads != 0)
    fields.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads, {}, or head_dim beside them",
                            model.num_attention_heads));
  model.head_dim = model.hidden_size / model.num_attention_heads;
  config.keys["head_dim"] = "hidden_size / num_attention_heads";
}

void read_activation(const HfFields& fields) {
  const char* key = "hidden_act";
  fields.require_not_null(key, "\"silu\"");
  if (fields.has(key) && fields.at(key) == "swish") return;  // another name for the same
  fields.only(key, "silu", "the feed-forward is SwiGLU");
}

AttentionBias read_bias(const HfFields& fields, const HfDefaults& defaults) {
  if (!defaults.states_bias) return defaults.bias;
  return fields.boolean_or("attention_bias", false) ? AttentionBias::kQkvo : AttentionBias::kNone;
}

}  // namespace

HfConfig read_attention_config(const HfFields& fields, const HfDefaults& defaults) {
  read_activation(fields);
  // Acts in training alone, where nothing is dropped here.
  fields.not_followed_unless("attention_dropout", 0);
  HfConfig config;
  ModelKeys& model = config.model;
  read_sizes(fields, defaults, config);
  model.attention_bias = read_bias(fields, defaults);
  model.max_position_embeddings =
      fields.integer_or("max_position_embeddings", defaults.positions, 1, kMaxPositions);
  read_rope(fields, defaults, model);
  model.layer_types.assign(size_t(model.num_hidden_layers), LayerType::kFullAttention);
  model.residual = Residual::kPlain;
  model.rms_norm_eps = fields.positive_or("rms_norm_eps", defaults.norm_eps);
  model.tie_word_embeddings = fields.boolean_or("tie_word_embeddings", false);
  model.pad_token_id = token_id(fields, "pad_token_id", -1);
  model.bos_token_id = token_id(fields, "bos_token_id", -1);
  model.eos_token_ids = token_ids(fields, "eos_token_id", {});
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

void require_layer_types(const HfFields& fields, const char* type) {
  if (!fields.has("layer_types")) return;
  const Json& list = fields.at("layer_types");
  const auto other = [&](const Json& entry) { return entry != type; };
  if (!list.is_array() || std::any_of(list.begin(), list.end(), other))
    fields.fail("layer_types", fmt::format("\"{}\" for every block", type));
}

std::optional<int64_t> read_window(const HfFields& fields) {
  constexpr int64_t kDefault = 4096;
  if (!fields.boolean_or("use_sliding_window", false)) return std::nullopt;
  if (fields.is_null("sliding_window")) return std::nullopt;
  return fields.integer_or("sliding_window", kDefault, 1, kMaxPositions);
}

bool states_attention_config(const ModelKeys& keys, const HfArithmetic& arithmetic) {
  const bool bias = arithmetic.states_bias ? keys.attention_bias != AttentionBias::kQkv
                                           : keys.attention_bias == arithmetic.bias;
  return bias && keys.residual == arithmetic.residual && keys.qk_norm == arithmetic.norm &&
         keys.attention_output_gate == arithmetic.gated &&
         keys.zero_centered_norm == arithmetic.gated &&
         (arithmetic.gated || keys.rotary_dim() == keys.head_dim);
}

void write_bias(const ModelKeys& keys, Json& json) {
  json["attention_bias"] = keys.attention_bias == AttentionBias::kQkvo;
}

void write_attention_config(const ModelKeys& keys, Json& json) {
  json["hidden_act"] = "silu";
  json["initializer_range"] = 0.02;
  json["num_hidden_layers"] = keys.num_hidden_layers;
  json["rms_norm_eps"] = keys.rms_norm_eps;
  json["use_cache"] = true;
  write_rope(keys, keys.rope_theta, json);
}

}  // namespace ashlar::models
