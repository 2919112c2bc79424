#include "ashlar/models/hf/attention_config.h"

#include <algorithm>

#include "ashlar/models/hf/rope_config.h"

namespace ashlar::models {
namespace {

// The sizes of the model and of its attention; returns the number of blocks.
int64_t read_sizes(const HfFields& fields, const HfDefaults& defaults, HfConfig& config,
                   AttentionSpec& attention) {
  ModelSpec& model = config.model;
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  model.vocab_size = read("vocab_size", kMaxSize);
  model.hidden_size = read("hidden_size", kMaxSize);
  const int64_t num_blocks = read("num_hidden_layers", kMaxLayers);
  attention.num_query_heads = read("num_attention_heads", kMaxHeads);
  attention.num_key_heads = attention.num_query_heads;
  config.keys["num_key_value_heads"] = "num_attention_heads";
  const std::string heads = "num_key_value_heads", dim = "head_dim";
  if (!defaults.null_key_heads) fields.require_not_null(heads, "a number of heads");
  if (!defaults.null_head_dim) fields.require_not_null(dim, "a number of channels");
  if (fields.has(heads)) {
    attention.num_key_heads = read("num_key_value_heads", kMaxHeads);
  } else if (defaults.key_heads > 0 && !fields.is_null(heads)) {
    attention.num_key_heads = defaults.key_heads;
    config.keys[heads] = fmt::format("{} (not stated)", heads);
  }
  if (fields.has(dim)) {
    attention.head_dim = read("head_dim", kMaxHeads);
    return num_blocks;
  }
  if (defaults.head_dim > 0) {
    attention.head_dim = defaults.head_dim;
    config.keys[dim] = fmt::format("{} (not stated)", dim);
    return num_blocks;
  }
  if (model.hidden_size % attention.num_query_heads != 0)
    fields.fail("hidden_size",
                fmt::format("a multiple of num_attention_heads, {}, or head_dim beside them",
                            attention.num_query_heads));
  attention.head_dim = model.hidden_size / attention.num_query_heads;
  config.keys["head_dim"] = "hidden_size / num_attention_heads";
  return num_blocks;
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
  ModelSpec& model = config.model;
  AttentionSpec attention;
  const int64_t num_blocks = read_sizes(fields, defaults, config, attention);
  attention.bias = read_bias(fields, defaults);
  model.max_positions =
      fields.integer_or("max_position_embeddings", defaults.positions, 1, kMaxPositions);
  read_rope(fields, defaults, model.max_positions, attention);
  model.blocks.assign(size_t(num_blocks), {attention, MlpSpec{}, Residual::kPlain});
  model.norm_eps = fields.positive_or("rms_norm_eps", defaults.norm_eps);
  model.tied_head = fields.boolean_or("tie_word_embeddings", false);
  model.pad_token_id = token_id(fields, "pad_token_id", -1);
  model.bos_token_id = token_id(fields, "bos_token_id", -1);
  model.eos_token_ids = token_ids(fields, "eos_token_id", {});
  const auto key = [&](const char* name) { return config.key_of(name); };
  const std::string block = "model.layers.0.";
  config.sizes = {
      {block + "self_attn.q_proj.weight", 0, key("num_attention_heads") + " * " + key("head_dim"),
       attention.q_dim()},
      {block + "self_attn.k_proj.weight", 0, key("num_key_value_heads") + " * " + key("head_dim"),
       attention.kv_dim()},
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

bool states_attention_config(const ModelSpec& model, const HfBlocks& blocks,
                             const HfArithmetic& arithmetic) {
  const AttentionSpec* attention = blocks.attention.any();
  if (!attention || blocks.odd || blocks.cca.any()) return false;
  if (!blocks.attention.one_reach()) {
    AttentionSpec sliding = *blocks.attention.sliding;
    sliding.window = attention->window, sliding.rope_theta = attention->rope_theta;
    if (sliding != *attention) return false;
  }
  const bool bias = arithmetic.states_bias ? attention->bias != AttentionBias::kQkv
                                           : attention->bias == arithmetic.bias;
  return bias && model.blocks[0].residual == arithmetic.residual &&
         attention->qk_norm == arithmetic.norm && attention->output_gate == arithmetic.gated &&
         model.zero_centered_norm == arithmetic.gated &&
         (arithmetic.gated || attention->rope().rotary_dim == attention->head_dim);
}

void write_bias(const HfBlocks& blocks, Json& json) {
  json["attention_bias"] = blocks.attention.any()->bias == AttentionBias::kQkvo;
}

void write_window(const HfBlocks& blocks, Json& json) {
  const AttentionSpec* sliding = blocks.attention.sliding;
  json["sliding_window"] = sliding ? Json(sliding->window) : Json(nullptr);
}

void write_attention_config(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  const AttentionSpec& attention = *blocks.attention.any();
  json["head_dim"] = attention.head_dim;
  json["hidden_act"] = "silu";
  json["initializer_range"] = 0.02;
  json["num_attention_heads"] = attention.num_query_heads;
  json["num_hidden_layers"] = model.num_blocks();
  json["num_key_value_heads"] = attention.num_key_heads;
  json["rms_norm_eps"] = model.norm_eps;
  json["use_cache"] = true;
  write_rope(model, attention, json);
}

}  // namespace ashlar::models
