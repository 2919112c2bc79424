// The config.json of dense models, as transformers 4 and 5 write it: LlamaForCausalLM and
// Qwen3ForCausalLM, which has QK norm and may have blocks with a window.
//
//   transformers 4   rope_theta, and rope_scaling: null or {rope_type (or type), factor, ...}
//   transformers 5   rope_parameters: {rope_theta, rope_type, factor, ...}
//
// Written is what both read.
#include <algorithm>

#include "ashlar/checkpoint/hf_family.h"
#include "ashlar/checkpoint/hf_reader.h"

namespace ashlar::checkpoint {
namespace {

// The values that transformers assumes where a config is silent.
constexpr double kDefaultEps = 1e-6, kDefaultTheta = 1e4;

// --- reading ---

void read_sizes(const HfFields& fields, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  model.vocab_size = read("vocab_size", kMaxSize);
  model.hidden_size = read("hidden_size", kMaxSize);
  model.num_hidden_layers = read("num_hidden_layers", kMaxLayers);
  model.intermediate_size = read("intermediate_size", kMaxSize);
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

// An object {rope_type or type, ...} of either version.
void read_rope_object(const HfFields& rope, ModelKeys& model) {
  model.rope_theta = rope.positive_or("rope_theta", model.rope_theta);
  rope.only("partial_rotary_factor", 1.0, "these models rotate all of a head");
  const char* type = rope.has("rope_type") ? "rope_type" : "type";
  if (!rope.has(type) || rope.at(type) == "default") return;
  if (rope.at(type) != "llama3") rope.fail(type, "\"default\" or \"llama3\"");
  model.rope_factor = rope.positive_or("factor", 1.0);
  model.rope_low_freq_factor = rope.positive_or("low_freq_factor", 1.0);
  model.rope_high_freq_factor = rope.positive_or("high_freq_factor", 4.0);
  model.rope_original_positions = rope.integer("original_max_position_embeddings", 1, INT32_MAX);
}

void read_rope(const HfFields& fields, ModelKeys& model) {
  model.partial_rotary_factor = 1.0;
  fields.only("partial_rotary_factor", 1.0, "these models rotate all of a head");
  model.rope_theta = fields.positive_or("rope_theta", kDefaultTheta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    if (!fields.at(key).is_object()) fields.fail(key, "an object with a rope_type, or null");
    read_rope_object(HfFields(fields.at(key), fmt::format("{}: {}", fields.source(), key)), model);
  }
  model.rope_theta_sliding = model.rope_theta;
}

// Whether block l has a window, as Qwen3's layer_types say or, before there were any,
// max_window_layers.
void read_windows(const HfFields& fields, ModelKeys& model) {
  const int64_t L = model.num_hidden_layers;
  const bool uses = fields.has("use_sliding_window") && fields.at("use_sliding_window") == true;
  if (fields.has("layer_types")) {
    const Json& list = fields.at("layer_types");
    const std::string expected = fmt::format(
        "a list of num_hidden_layers = {} names, each \"full_attention\" or \"sliding_attention\"",
        L);
    if (!list.is_array() || int64_t(list.size()) != L) fields.fail("layer_types", expected);
    for (size_t l = 0; l < list.size(); ++l) {
      if (list[l] != "full_attention" && list[l] != "sliding_attention")
        fields.fail("layer_types", expected);
      model.layer_types[l].sliding = list[l] == "sliding_attention";
    }
  } else if (uses) {
    for (int64_t l = fields.integer_or("max_window_layers", 28, 0, kMaxLayers); l < L; ++l)
      model.layer_types[size_t(l)].sliding = true;
  }
  const auto slides = [](const LayerType& type) { return type.sliding; };
  if (std::any_of(model.layer_types.begin(), model.layer_types.end(), slides))
    model.sliding_window = fields.integer("sliding_window", 1, INT32_MAX);
}

HfConfig read_dense(const HfFields& fields) {
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
  read_rope(fields, model);
  model.layer_types.assign(size_t(model.num_hidden_layers), LayerType::kFullAttention);
  model.residual = Residual::kPlain;
  model.rms_norm_eps = fields.positive_or("rms_norm_eps", kDefaultEps);
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
      {block + "mlp.gate_proj.weight", 0, key("intermediate_size"), model.intermediate_size},
  };
  return config;
}

HfConfig read_qwen3(const HfFields& fields) {
  HfConfig config = read_dense(fields);
  config.model.qk_norm = QkNorm::kRms;
  read_windows(fields, config.model);
  return config;
}

// --- writing ---

bool states_dense(const ModelKeys& keys, QkNorm norm) {
  const auto dense = [](const LayerType& type) {
    return type == LayerType::kFullAttention || type == LayerType::kSlidingAttention;
  };
  return keys.residual == Residual::kPlain && keys.qk_norm == norm &&
         keys.rotary_dim() == keys.head_dim &&
         std::all_of(keys.layer_types.begin(), keys.layer_types.end(), dense);
}

bool has_windows(const ModelKeys& keys) {
  return std::find(keys.layer_types.begin(), keys.layer_types.end(),
                   LayerType::kSlidingAttention) != keys.layer_types.end();
}

bool states_llama(const ModelKeys& keys) {
  return states_dense(keys, QkNorm::kNone) && !has_windows(keys);
}

bool states_qwen3(const ModelKeys& keys) {
  return states_dense(keys, QkNorm::kRms) &&
         (!has_windows(keys) || keys.rope_theta_sliding == keys.rope_theta);
}

void write_dense(const ModelKeys& keys, Json& json) {
  json["hidden_act"] = "silu";
  json["initializer_range"] = 0.02;
  json["intermediate_size"] = keys.intermediate_size;
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

void write_llama(const ModelKeys& keys, HfLayout, Json& json) {
  write_dense(keys, json);
  json["mlp_bias"] = false;
}

void write_qwen3(const ModelKeys& keys, HfLayout, Json& json) {
  write_dense(keys, json);
  const bool windows = has_windows(keys);
  json["layer_types"] = Json::array();
  for (const LayerType& type : keys.layer_types) json["layer_types"].push_back(name_of(type));
  json["use_sliding_window"] = windows;
  json["sliding_window"] = windows ? Json(keys.sliding_window) : Json(nullptr);
  // Read where layer_types is not: the first block from which on all have a window.
  int64_t first = keys.num_hidden_layers;
  while (first > 0 && keys.layer_types[size_t(first) - 1].sliding) --first;
  json["max_window_layers"] = first;
}

}  // namespace

const HfFamily kHfLlama{.model_type = "llama",
                        .architecture = "LlamaForCausalLM",
                        .states = states_llama,
                        .read = read_dense,
                        .write = write_llama};
const HfFamily kHfQwen3{.model_type = "qwen3",
                        .architecture = "Qwen3ForCausalLM",
                        .states = states_qwen3,
                        .read = read_qwen3,
                        .write = write_qwen3};

}  // namespace ashlar::checkpoint
