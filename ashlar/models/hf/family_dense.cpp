// The config.json of dense models: LlamaForCausalLM; MistralForCausalLM, whose blocks may all have
// a window; Qwen2ForCausalLM, whose queries, keys and values have biases; Qwen3ForCausalLM, which
// has QK norm.  In both of Qwen's any block may have a window.
#include <algorithm>

#include "ashlar/models/hf/rope_config.h"

namespace ashlar::models {
namespace {

constexpr HfDefaults kLlamaDefaults{.positions = 2048, .states_bias = true};
constexpr HfDefaults kMistralDefaults{.positions = 131072, .key_heads = 8, .null_key_heads = false};
constexpr HfDefaults kQwen2Defaults{
    .key_heads = 32, .null_head_dim = false, .bias = AttentionBias::kQkv};
constexpr HfDefaults kQwen3Defaults{
    .key_heads = 32, .head_dim = 128, .null_head_dim = false, .states_bias = true};
constexpr HfArithmetic kLlama{.states_bias = true};
constexpr HfArithmetic kMistral{};
constexpr HfArithmetic kQwen2{.bias = AttentionBias::kQkv};
constexpr HfArithmetic kQwen3{.norm = QkNorm::kRms, .states_bias = true};

// --- reading ---

HfConfig read_dense(const HfFields& fields, const HfDefaults& defaults) {
  HfConfig config = read_attention_config(fields, defaults);
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  model.intermediate_size = size.scalar("intermediate_size", "intermediate_size", kMaxSize);
  config.sizes.push_back({"model.layers.0.mlp.gate_proj.weight", 0,
                          config.key_of("intermediate_size"), model.intermediate_size});
  return config;
}

HfConfig read_llama(const HfFields& fields) {
  if (fields.boolean_or("mlp_bias", false))
    fields.fail("mlp_bias", "false: feed-forwards without bias are supported");
  require_layer_types(fields, "full_attention");
  return read_dense(fields, kLlamaDefaults);
}

// Where the file says nothing there is a window, as in the first release; null: none.
HfConfig read_mistral(const HfFields& fields) {
  constexpr int64_t kWindow = 4096;
  HfConfig config = read_dense(fields, kMistralDefaults);
  ModelKeys& model = config.model;
  const char* key = "sliding_window";
  const bool slides = !fields.is_null(key);
  require_layer_types(fields, slides ? "sliding_attention" : "full_attention");
  if (!slides) return config;
  model.sliding_window = fields.integer_or(key, kWindow, 1, kMaxPositions);
  for (LayerType& type : model.layer_types) type.sliding = true;
  return config;
}

// Which blocks have a window, as Qwen's layer_types say or, where they are not there,
// max_window_layers.
void read_windows(const HfFields& fields, ModelKeys& model) {
  const int64_t L = model.num_hidden_layers;
  const std::optional<int64_t> window = read_window(fields);
  if (window) model.sliding_window = *window;
  if (!fields.has("layer_types")) {
    const int64_t first = fields.integer_or("max_window_layers", 28, 0, kMaxLayers);
    for (int64_t l = first; window && l < L; ++l) model.layer_types[size_t(l)].sliding = true;
    return;
  }
  const Json& list = fields.at("layer_types");
  const std::string expected = fmt::format(
      "a list of num_hidden_layers = {} names, each \"full_attention\" or \"sliding_attention\"",
      L);
  if (!list.is_array() || int64_t(list.size()) != L) fields.fail("layer_types", expected);
  for (size_t l = 0; l < list.size(); ++l) {
    if (list[l] != "full_attention" && list[l] != "sliding_attention")
      fields.fail("layer_types", expected);
    model.layer_types[l].sliding = list[l] == "sliding_attention";
    if (model.layer_types[l].sliding && !window)
      fields.fail("layer_types",
                  "\"full_attention\" for every block, or use_sliding_window true and a "
                  "sliding_window beside it");
  }
}

HfConfig read_qwen2(const HfFields& fields) {
  HfConfig config = read_dense(fields, kQwen2Defaults);
  read_windows(fields, config.model);
  return config;
}

HfConfig read_qwen3(const HfFields& fields) {
  HfConfig config = read_dense(fields, kQwen3Defaults);
  config.model.qk_norm = QkNorm::kRms;
  read_windows(fields, config.model);
  return config;
}

// --- writing ---

bool states_dense(const ModelKeys& keys, const HfArithmetic& arithmetic) {
  const auto dense = [](const LayerType& type) {
    return type == LayerType::kFullAttention || type == LayerType::kSlidingAttention;
  };
  return states_attention_config(keys, arithmetic) &&
         std::all_of(keys.layer_types.begin(), keys.layer_types.end(), dense);
}

int64_t num_windows(const ModelKeys& keys) {
  return std::count(keys.layer_types.begin(), keys.layer_types.end(), LayerType::kSlidingAttention);
}

// Where some blocks slide, and others do not.
bool has_one_base(const ModelKeys& keys) {
  const int64_t windows = num_windows(keys);
  return windows == 0 || windows == keys.num_hidden_layers ||
         keys.rope_theta_sliding == keys.rope_theta;
}

bool states_llama(const ModelKeys& keys) {
  return states_dense(keys, kLlama) && num_windows(keys) == 0;
}

bool states_mistral(const ModelKeys& keys) {
  return states_dense(keys, kMistral) && num_windows(keys) == keys.num_hidden_layers;
}

bool states_qwen2(const ModelKeys& keys) {
  return states_dense(keys, kQwen2) && has_one_base(keys);
}

bool states_qwen3(const ModelKeys& keys) {
  return states_dense(keys, kQwen3) && has_one_base(keys);
}

void write_dense(const ModelKeys& keys, Json& json) {
  write_attention_config(keys, json);
  json["intermediate_size"] = keys.intermediate_size;
}

void write_llama(const ModelKeys& keys, HfLayout, Json& json) {
  write_dense(keys, json);
  write_bias(keys, json);
  json["mlp_bias"] = false;
}

void write_mistral(const ModelKeys& keys, HfLayout, Json& json) {
  write_dense(keys, json);
  write_rope(keys, keys.rope_theta_sliding, json);
  json["sliding_window"] = keys.sliding_window;
}

void write_windows(const ModelKeys& keys, Json& json) {
  const bool windows = num_windows(keys) > 0;
  if (windows) write_rope(keys, keys.rope_theta_sliding, json);
  json["layer_types"] = Json::array();
  for (const LayerType& type : keys.layer_types) json["layer_types"].push_back(name_of(type));
  json["use_sliding_window"] = windows;
  json["sliding_window"] = windows ? Json(keys.sliding_window) : Json(nullptr);
  // Read where layer_types is not: the first block from which on all have a window.
  int64_t first = keys.num_hidden_layers;
  while (first > 0 && keys.layer_types[size_t(first) - 1].sliding) --first;
  json["max_window_layers"] = first;
}

void write_qwen2(const ModelKeys& keys, HfLayout, Json& json) {
  write_dense(keys, json);
  write_windows(keys, json);
}

void write_qwen3(const ModelKeys& keys, HfLayout, Json& json) {
  write_dense(keys, json);
  write_bias(keys, json);
  write_windows(keys, json);
}

}  // namespace

const HfFamily kHfLlama{.model_type = "llama",
                        .architecture = "LlamaForCausalLM",
                        .states = states_llama,
                        .read = read_llama,
                        .write = write_llama};
const HfFamily kHfMistral{.model_type = "mistral",
                          .architecture = "MistralForCausalLM",
                          .states = states_mistral,
                          .read = read_mistral,
                          .write = write_mistral};
const HfFamily kHfQwen2{.model_type = "qwen2",
                        .architecture = "Qwen2ForCausalLM",
                        .states = states_qwen2,
                        .read = read_qwen2,
                        .write = write_qwen2};
const HfFamily kHfQwen3{.model_type = "qwen3",
                        .architecture = "Qwen3ForCausalLM",
                        .states = states_qwen3,
                        .read = read_qwen3,
                        .write = write_qwen3};

}  // namespace ashlar::models
