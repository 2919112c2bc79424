// The config.json of mixtures of experts with a linear router: MixtralForCausalLM, all of whose
// blocks are alike, and Qwen3MoeForCausalLM, which has QK norm and may have dense blocks between.
// Their files store every expert apart.
//
// Source   Mixtral, arXiv 2401.04088; Qwen3, arXiv 2505.09388; docs/hugging-face.md.
#include "ashlar/models/hf/family_moe.h"

#include <algorithm>

namespace ashlar::models {
namespace {

constexpr HfDefaults kMixtralDefaults{.norm_eps = 1e-5,
                                      .rope_theta = 1e6,
                                      .positions = 131072,
                                      .key_heads = 8,
                                      .null_key_heads = false};
constexpr HfDefaults kQwen3MoeDefaults{
    .key_heads = 4, .null_key_heads = false, .null_head_dim = false, .states_bias = true};
constexpr HfArithmetic kQwen3Moe{.norm = QkNorm::kRms, .states_bias = true};

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

void read_mixture(const HfFields& fields, const std::string& width_key, int64_t num_chosen,
                  HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  // Noise acts in training alone, where there is none here.
  fields.require_not_null("router_jitter_noise", "a number");
  fields.not_followed_unless("router_jitter_noise", 0);
  model.router = RouterKind::kLinear;
  model.num_experts = read_num_experts(fields, size);
  model.num_experts_per_tok =
      fields.integer_or("num_experts_per_tok", num_chosen, 1, model.num_experts);
  if (model.num_experts_per_tok > model.num_experts)  // the family's number
    fields.fail("num_experts_per_tok", fmt::format("an integer from 1 to {}", model.num_experts));
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

namespace {

// A window, where there is one, is every block's.
void read_common_window(const HfFields& fields, std::optional<int64_t> window, ModelKeys& model) {
  require_layer_types(fields, window ? "sliding_attention" : "full_attention");
  if (!window) return;
  model.sliding_window = *window;
  for (LayerType& type : model.layer_types) type.sliding = true;
}

HfConfig read_mixtral(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kMixtralDefaults);
  ModelKeys& model = config.model;
  for (LayerType& type : model.layer_types) type.feed_forward = MoeSpec::kKind;
  read_mixture(fields, "intermediate_size", 2, config);
  std::optional<int64_t> window;
  if (fields.has("sliding_window")) window = fields.integer("sliding_window", 1, kMaxPositions);
  read_common_window(fields, window, model);
  return config;
}

HfConfig read_qwen3_moe(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kQwen3MoeDefaults);
  ModelKeys& model = config.model;
  model.qk_norm = QkNorm::kRms;
  read_sparse_blocks(fields, "a Qwen3ForCausalLM", model);
  read_mixture(fields, "moe_intermediate_size", 8, config);
  model.norm_topk_prob = fields.boolean_or("norm_topk_prob", false);
  read_dense_blocks(fields, config);
  read_common_window(fields, read_window(fields), model);
  return config;
}

// --- writing ---

// With nothing beside the experts.
bool states_mixture(const ModelKeys& keys) {
  return states_router(keys) && keys.shared_expert_intermediate_size == 0;
}

// Blocks of attention, all of them with a window or none.
bool has_one_window(const ModelKeys& keys) {
  const bool slides = keys.layer_types.at(0).sliding;
  return std::all_of(keys.layer_types.begin(), keys.layer_types.end(), [&](const LayerType& type) {
    return type.mixer == AttentionSpec::kKind && type.sliding == slides;
  });
}

bool states_mixtral(const ModelKeys& keys) {
  return states_attention_config(keys, {}) && states_mixture(keys) && keys.norm_topk_prob &&
         has_one_window(keys) &&
         std::all_of(keys.layer_types.begin(), keys.layer_types.end(), has_experts);
}

bool states_qwen3_moe(const ModelKeys& keys) {
  return states_attention_config(keys, kQwen3Moe) && states_mixture(keys) && has_one_window(keys) &&
         first_block(keys, has_experts) < keys.num_hidden_layers;
}

// Of all blocks.
void write_common_window(const ModelKeys& keys, Json& json) {
  const bool slides = keys.layer_types[0].sliding;
  json["sliding_window"] = slides ? Json(keys.sliding_window) : Json(nullptr);
  if (slides) write_rope(keys, keys.rope_theta_sliding, json);
}

void write_mixtral(const ModelKeys& keys, HfLayout, Json& json) {
  write_mixture(keys, json);
  json["intermediate_size"] = keys.moe_intermediate_size;
  json["router_jitter_noise"] = 0.0;
  write_common_window(keys, json);
}

void write_qwen3_moe(const ModelKeys& keys, HfLayout, Json& json) {
  write_mixture(keys, json);
  write_bias(keys, json);
  write_sparse_blocks(keys, json);
  write_common_window(keys, json);
  json["use_sliding_window"] = keys.layer_types[0].sliding;
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

}  // namespace ashlar::models
