// The config.json of dense models: LlamaForCausalLM, and Qwen3ForCausalLM, which has QK norm and
// may have blocks with a window.
#include <algorithm>

#include "ashlar/checkpoint/hf_attention.h"

namespace ashlar::checkpoint {
namespace {

// --- reading ---

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
  HfConfig config = read_attention_config(fields);
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  model.intermediate_size = size.scalar("intermediate_size", "intermediate_size", kMaxSize);
  config.sizes.push_back({"model.layers.0.mlp.gate_proj.weight", 0,
                          config.key_of("intermediate_size"), model.intermediate_size});
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
  return states_attention_config(keys, {.norm = norm}) &&
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
  write_attention_config(keys, json);
  json["intermediate_size"] = keys.intermediate_size;
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
