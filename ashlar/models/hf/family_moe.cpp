// The config.json of mixtures of experts with a linear router: MixtralForCausalLM, whose blocks are
// all alike, and Qwen3MoeForCausalLM, which has QK norm and may have dense blocks in between.
// Their files store every expert separately.
//
// Source   Mixtral, arXiv 2401.04088; Qwen3, arXiv 2505.09388; docs/hugging-face.md.
#include "ashlar/models/hf/family_moe.h"

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
  ModelSpec& model = config.model;
  SizeReader size{fields, config.keys};
  // Noise acts in training alone, where there is none here.
  fields.require_not_null("router_jitter_noise", "a number");
  fields.not_followed_unless("router_jitter_noise", 0);
  MoeSpec moe;
  LinearRouterSpec router;
  moe.num_experts = read_num_experts(fields, size);
  router.num_chosen = fields.integer_or("num_experts_per_tok", num_chosen, 1, moe.num_experts);
  if (router.num_chosen > moe.num_experts)  // the family's number
    fields.fail("num_experts_per_tok", fmt::format("an integer from 1 to {}", moe.num_experts));
  moe.router = router;
  moe.width = size.scalar("moe_intermediate_size", width_key, kMaxSize);
  const std::string block = fmt::format("model.layers.{}.mlp.", first_block_with<MoeSpec>(model));
  config.sizes.push_back({block + "gate.weight", 0, config.key_of("num_experts"), moe.num_experts});
  config.sizes.push_back(
      {block + "experts.down_proj", 2, config.key_of("moe_intermediate_size"), moe.width});
  change_each<MoeSpec>(model, [&](MoeSpec& each) { each = moe; });
}

void read_renormalize(const HfFields& fields, bool fallback, ModelSpec& model) {
  const bool renormalize = fields.boolean_or("norm_topk_prob", fallback);
  change_each<MoeSpec>(model, [&](MoeSpec& moe) {
    std::get<LinearRouterSpec>(moe.router).renormalize = renormalize;
  });
}

void read_sparse_blocks(const HfFields& fields, const char* otherwise, ModelSpec& model) {
  const std::string some =
      fmt::format("at least one block with experts: a model without is {}", otherwise);
  const int64_t L = model.num_blocks();
  const int64_t step = fields.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  const auto none = [&] { return first_block_with<MoeSpec>(model) == L; };
  for (int64_t l = step - 1; l < L; l += step) model.blocks[size_t(l)].feed_forward = MoeSpec{};
  if (none()) fields.fail("decoder_sparse_step", some);
  if (fields.has("mlp_only_layers")) {
    const Json& list = fields.at("mlp_only_layers");
    const std::string expected =
        fmt::format("a list of numbers of blocks, each from 0 to {}", L - 1);
    if (!list.is_array()) fields.fail("mlp_only_layers", expected);
    for (const Json& entry : list) {
      const auto block = integer_of(entry);
      if (!block || *block < 0 || *block >= L) fields.fail("mlp_only_layers", expected);
      model.blocks[size_t(*block)].feed_forward = MlpSpec{};
    }
  }
  if (none()) fields.fail("mlp_only_layers", some);
}

void read_dense_blocks(const HfFields& fields, HfConfig& config) {
  ModelSpec& model = config.model;
  const int64_t first = first_block_with<MlpSpec>(model);
  if (first == model.num_blocks()) return;
  SizeReader size{fields, config.keys};
  const int64_t width = size.scalar("intermediate_size", "intermediate_size", kMaxSize);
  change_each<MlpSpec>(model, [&](MlpSpec& mlp) { mlp.width = width; });
  config.sizes.push_back({fmt::format("model.layers.{}.mlp.gate_proj.weight", first), 0,
                          config.key_of("intermediate_size"), width});
}

namespace {

// A window, if there is one, holds for every block.
void read_common_window(const HfFields& fields, std::optional<int64_t> window, ModelSpec& model) {
  require_layer_types(fields, window ? "sliding_attention" : "full_attention");
  change_each<AttentionSpec>(model, [&](AttentionSpec& each) { each.window = window.value_or(0); });
}

HfConfig read_mixtral(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kMixtralDefaults);
  ModelSpec& model = config.model;
  for (BlockSpec& block : model.blocks) block.feed_forward = MoeSpec{};
  read_mixture(fields, "intermediate_size", 2, config);
  std::optional<int64_t> window;
  if (fields.has("sliding_window")) window = fields.integer("sliding_window", 1, kMaxPositions);
  read_common_window(fields, window, model);
  return config;
}

HfConfig read_qwen3_moe(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kQwen3MoeDefaults);
  ModelSpec& model = config.model;
  change_each<AttentionSpec>(model, [](AttentionSpec& each) { each.qk_norm = QkNorm::kRms; });
  read_sparse_blocks(fields, "a Qwen3ForCausalLM", model);
  read_mixture(fields, "moe_intermediate_size", 8, config);
  read_renormalize(fields, false, model);
  read_dense_blocks(fields, config);
  read_common_window(fields, read_window(fields), model);
  return config;
}

// --- writing ---

// Whether all blocks have attention, with a window in all of them or in none, and mixtures have no
// shared expert.
bool states_mixtures(const ModelSpec& model, const HfBlocks& blocks,
                     const HfArithmetic& arithmetic) {
  return states_attention_config(model, blocks, arithmetic) && !blocks.linear &&
         blocks.attention.one_reach() && states_router(blocks.moe) && blocks.moe->shared.width == 0;
}

bool states_mixtral(const ModelSpec& model) {
  const HfBlocks blocks(model);
  return states_mixtures(model, blocks, {}) && states_renormalized_router(blocks.moe) &&
         !blocks.mlp;
}

bool states_qwen3_moe(const ModelSpec& model) {
  return states_mixtures(model, HfBlocks(model), kQwen3Moe);
}

void write_mixtral(const ModelSpec& model, HfLayout, Json& json) {
  const HfBlocks blocks(model);
  write_mixture(model, blocks, json);
  write_mixtral_blocks(blocks, json);
}

void write_qwen3_moe(const ModelSpec& model, HfLayout, Json& json) {
  const HfBlocks blocks(model);
  write_mixture(model, blocks, json);
  write_bias(blocks, json);
  write_sparse_blocks(model, blocks, json);
  write_window(blocks, json);
  json["use_sliding_window"] = blocks.attention.sliding != nullptr;
}

const LinearRouterSpec* linear_router_of(const MoeSpec* moe) {
  return moe ? std::get_if<LinearRouterSpec>(&moe->router) : nullptr;
}

}  // namespace

bool states_router(const MoeSpec* moe) {
  const LinearRouterSpec* router = linear_router_of(moe);
  return router && router->pre_softmax && router->scale == 1.0 && !router->expert_bias;
}

bool states_renormalized_router(const MoeSpec* moe) {
  return states_router(moe) && linear_router_of(moe)->renormalize;
}

void write_mixture(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  write_attention_config(model, blocks, json);
  json["num_experts_per_tok"] = blocks.moe->experts_of_token();
  json["num_local_experts"] = blocks.moe->num_experts;
  json["output_router_logits"] = false;
}

void write_mixtral_blocks(const HfBlocks& blocks, Json& json) {
  json["intermediate_size"] = blocks.moe->width;
  json["router_jitter_noise"] = 0.0;
  write_window(blocks, json);
}

void write_sparse_blocks(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (size_t l = 0; l < model.blocks.size(); ++l)
    if (!has<MoeSpec>(model.blocks[l])) json["mlp_only_layers"].push_back(l);
  if (blocks.mlp) json["intermediate_size"] = blocks.mlp->width;
  json["moe_intermediate_size"] = blocks.moe->width;
  json["norm_topk_prob"] = linear_router_of(blocks.moe)->renormalize;
  json["num_experts"] = blocks.moe->num_experts;
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
