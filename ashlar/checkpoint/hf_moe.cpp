// The config.json of mixtures of experts with a linear router: MixtralForCausalLM, all of whose
// blocks are alike, and Qwen3MoeForCausalLM, which has QK norm and may have dense blocks between.
// Their files store every expert apart.
//
// Source   Mixtral, arXiv 2401.04088; Qwen3, arXiv 2505.09388; docs/formats/model.md.
#include "ashlar/checkpoint/hf_moe.h"

#include <algorithm>

namespace ashlar::checkpoint {
namespace {

constexpr LayerType kMoe{AttentionSpec::kKind, MoeSpec::kKind};
constexpr LayerType kSlidingMoe{AttentionSpec::kKind, MoeSpec::kKind, true};

bool has(const ModelKeys& keys, const LayerType& type) {
  return std::find(keys.layer_types.begin(), keys.layer_types.end(), type) !=
         keys.layer_types.end();
}

// --- reading ---

// num_local_experts or num_experts: releases have one or the other.
int64_t read_num_experts(const HfFields& fields, SizeReader& size) {
  if (fields.has("num_experts") && fields.has("num_local_experts") &&
      fields.at("num_experts") != fields.at("num_local_experts"))
    fields.fail("num_experts", fmt::format("num_local_experts, which is {}: keep one of them",
                                           fields.at("num_local_experts").dump()));
  return size.first("num_experts", {"num_experts", "num_local_experts"}, kMaxExperts);
}

}  // namespace

void read_mixture(const HfFields& fields, const std::string& width_key, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  model.router = RouterKind::kLinear;
  model.num_experts = read_num_experts(fields, size);
  model.num_experts_per_tok = fields.integer("num_experts_per_tok", 1, model.num_experts);
  model.moe_intermediate_size = size.scalar("moe_intermediate_size", width_key, kMaxSize);
  const std::string block = fmt::format("model.layers.{}.mlp.", first_block(model, has_experts));
  config.sizes.push_back(
      {block + "gate.weight", 0, config.key_of("num_experts"), model.num_experts});
  config.sizes.push_back({block + "experts.down_proj", 2, config.key_of("moe_intermediate_size"),
                          model.moe_intermediate_size});
}

void read_sparse_blocks(const HfFields& fields, const char* otherwise, ModelKeys& model) {
  const std::string some =
      fmt::format("at least one block with experts: a model without is {}", otherwise);
  const int64_t L = model.num_hidden_layers;
  const int64_t step = fields.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  const auto none = [&] { return first_block(model, has_experts) == L; };
  for (int64_t l = step - 1; l < L; l += step)
    model.layer_types[size_t(l)].feed_forward = MoeSpec::kKind;
  if (none()) fields.fail("decoder_sparse_step", some);
  if (fields.has("mlp_only_layers")) {
    const Json& list = fields.at("mlp_only_layers");
    const std::string expected =
        fmt::format("a list of numbers of blocks, each from 0 to {}", L - 1);
    if (!list.is_array()) fields.fail("mlp_only_layers", expected);
    for (const Json& entry : list) {
      const auto block = integer_of(entry);
      if (!block || *block < 0 || *block >= L) fields.fail("mlp_only_layers", expected);
      model.layer_types[size_t(*block)].feed_forward = MlpSpec::kKind;
    }
  }
  if (none()) fields.fail("mlp_only_layers", some);
}

void read_dense_blocks(const HfFields& fields, HfConfig& config) {
  ModelKeys& model = config.model;
  const int64_t first =
      first_block(model, [](const LayerType& type) { return !has_experts(type); });
  if (first == model.num_hidden_layers) return;
  SizeReader size{fields, config.keys};
  model.intermediate_size = size.scalar("intermediate_size", "intermediate_size", kMaxSize);
  config.sizes.push_back({fmt::format("model.layers.{}.mlp.gate_proj.weight", first), 0,
                          config.key_of("intermediate_size"), model.intermediate_size});
}

bool bool_or(const HfFields& fields, const char* key, bool fallback) {
  if (!fields.has(key)) return fallback;
  if (!fields.at(key).is_boolean()) fields.fail(key, "true or false");
  return fields.at(key).get<bool>();
}

namespace {

HfConfig read_mixtral(const HfFields& fields) {
  fields.only("router_jitter_noise", 0, "noise on the router's input is not supported");
  if (!fields.has("num_key_value_heads"))
    fields.fail("num_key_value_heads", fmt::format("an integer from 1 to {}", kMaxHeads));
  HfConfig config = read_attention_config(fields, {.norm_eps = 1e-5, .rope_theta = 1e6});
  ModelKeys& model = config.model;
  // A window, where there is one, is every block's.
  const bool slides = fields.has("sliding_window");
  if (slides) model.sliding_window = fields.integer("sliding_window", 1, INT32_MAX);
  model.layer_types.assign(size_t(model.num_hidden_layers), slides ? kSlidingMoe : kMoe);
  read_mixture(fields, "intermediate_size", config);
  return config;
}

HfConfig read_qwen3_moe(const HfFields& fields) {
  fields.only("use_sliding_window", false, "blocks with a window are not supported in this family");
  if (fields.has("layer_types"))
    for (const Json& type : fields.at("layer_types"))
      if (type != "full_attention")
        fields.fail("layer_types", "\"full_attention\" for every block");
  HfConfig config = read_attention_config(fields);
  ModelKeys& model = config.model;
  model.qk_norm = QkNorm::kRms;
  read_sparse_blocks(fields, "a Qwen3ForCausalLM", model);
  read_mixture(fields, "moe_intermediate_size", config);
  model.norm_topk_prob = bool_or(fields, "norm_topk_prob", false);
  read_dense_blocks(fields, config);
  return config;
}

// --- writing ---

// With nothing beside the experts.
bool states_mixture(const ModelKeys& keys) {
  return states_router(keys) && keys.shared_expert_intermediate_size == 0;
}

bool states_mixtral(const ModelKeys& keys) {
  const LayerType& type = keys.layer_types.at(0);
  return states_attention_config(keys, {}) && states_mixture(keys) && keys.norm_topk_prob &&
         (type == kMoe || type == kSlidingMoe) &&
         std::count(keys.layer_types.begin(), keys.layer_types.end(), type) ==
             int64_t(keys.layer_types.size());
}

bool states_qwen3_moe(const ModelKeys& keys) {
  const auto known = [](const LayerType& type) {
    return type == kMoe || type == LayerType::kFullAttention;
  };
  return states_attention_config(keys, {.norm = QkNorm::kRms}) && states_mixture(keys) &&
         has(keys, kMoe) && std::all_of(keys.layer_types.begin(), keys.layer_types.end(), known);
}

void write_mixtral(const ModelKeys& keys, HfLayout, Json& json) {
  write_mixture(keys, json);
  json["intermediate_size"] = keys.moe_intermediate_size;
  json["router_jitter_noise"] = 0.0;
  const bool slides = keys.layer_types[0].sliding;
  json["sliding_window"] = slides ? Json(keys.sliding_window) : Json(nullptr);
  if (slides) json["rope_theta"] = json["rope_parameters"]["rope_theta"] = keys.rope_theta_sliding;
}

void write_qwen3_moe(const ModelKeys& keys, HfLayout, Json& json) {
  write_mixture(keys, json);
  write_sparse_blocks(keys, json);
  json["sliding_window"] = nullptr;
  json["use_sliding_window"] = false;
}

}  // namespace

bool states_router(const ModelKeys& keys) {
  return keys.router == RouterKind::kLinear && keys.router_pre_softmax &&
         keys.routed_scaling_factor == 1.0 && !keys.router_expert_bias;
}

void write_mixture(const ModelKeys& keys, Json& json) {
  write_attention_config(keys, json);
  json["num_experts_per_tok"] = keys.num_experts_per_tok;
  json["num_local_experts"] = keys.num_experts;
  json["output_router_logits"] = false;
}

void write_sparse_blocks(const ModelKeys& keys, Json& json) {
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (size_t l = 0; l < keys.layer_types.size(); ++l)
    if (!has_experts(keys.layer_types[l])) json["mlp_only_layers"].push_back(l);
  if (keys.intermediate_size > 0) json["intermediate_size"] = keys.intermediate_size;
  json["moe_intermediate_size"] = keys.moe_intermediate_size;
  json["norm_topk_prob"] = keys.norm_topk_prob;
  json["num_experts"] = keys.num_experts;
}

const HfFamily kHfMixtral{.model_type = "mixtral",
                          .architecture = "MixtralForCausalLM",
                          .states = states_mixtral,
                          .read = read_mixtral,
                          .write = write_mixtral,
                          .names = {.experts = &kMixtralExperts}};
const HfFamily kHfQwen3Moe{.model_type = "qwen3_moe",
                           .architecture = "Qwen3MoeForCausalLM",
                           .states = states_qwen3_moe,
                           .read = read_qwen3_moe,
                           .write = write_qwen3_moe,
                           .names = {.experts = &kQwen3MoeExperts}};

}  // namespace ashlar::checkpoint
