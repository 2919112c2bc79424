// Writes ZAYA1's config.json, in the native form or in the legacy form of 2026.
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/models/hf/blocks.h"
#include "ashlar/models/hf/family_zaya.h"

namespace ashlar::models {
namespace {

// Written for blocks without a window where none is.
constexpr double kUnusedTheta = 1e4;

bool slides(const BlockSpec& block) {
  return part_in<CcaSpec>(block)->window > 0;
}

int64_t router_width(const HfBlocks& blocks) {
  return std::get<MlpRouterSpec>(blocks.moe->router).width;
}

// transformers rejects a sliding_window without sliding blocks and rope_parameters of unused types.
void write_native(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  json["hidden_act"] = "silu";
  json["initializer_range"] = 0.02;
  json["layer_types"] = Json::array();
  for (const BlockSpec& block : model.blocks)
    json["layer_types"].push_back(slides(block) ? "hybrid_sliding" : "hybrid");
  json["moe_intermediate_size"] = blocks.moe->width;
  json["num_experts_per_tok"] = 1;
  json["num_hidden_layers"] = model.num_blocks();
  json["output_router_logits"] = false;
  json["rms_norm_eps"] = model.norm_eps;
  json["router_hidden_size"] = router_width(blocks);
  const auto rope = [](const CcaSpec& mixer) {
    return Json{{"rope_type", "default"},
                {"rope_theta", mixer.rope_theta},
                {"partial_rotary_factor", mixer.rotary_factor}};
  };
  if (blocks.cca.whole) json["rope_parameters"]["hybrid"] = rope(*blocks.cca.whole);
  json["sliding_window"] = nullptr;
  if (blocks.cca.sliding) {
    json["rope_parameters"]["hybrid_sliding"] = rope(*blocks.cca.sliding);
    json["sliding_window"] = blocks.cca.sliding->window;
  }
}

void write_legacy_windows(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  const CcaSpec& sliding = *blocks.cca.sliding;
  const double rotary = blocks.cca.any()->rotary_factor;
  ASHLAR_REQUIRE(
      sliding.window >= 2, kConfig,
      "sliding_window is {}; the legacy layout can state 2 and more: export the native one",
      sliding.window);
  ASHLAR_REQUIRE(sliding.rotary_factor == rotary, kConfig,
                 "partial_rotary_factor is {} in blocks with a window but {} in the others; the "
                 "legacy layout states one for all: export the native one",
                 sliding.rotary_factor, rotary);
  json["swa_layers"] = Json::array();
  for (const BlockSpec& block : model.blocks) {
    json["swa_layers"].push_back(slides(block) ? sliding.window - 1 : 0);
    json["swa_layers"].push_back(0);
  }
  json["swa_rotary_base"] = sliding.rope_theta;
}

void write_legacy(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  for (const char* flag : {"cca", "gated_linear_unit", "residual_in_fp32", "scale_residual_merge",
                           "zaya_high_prec", "zaya_use_eda", "zaya_use_mod"})
    json[flag] = true;
  for (const char* flag : {"add_bias_linear", "clamp_temp", "rope_scaling"}) json[flag] = false;
  json["activation_func"] = "swiglu";
  json["ffn_hidden_size"] = 2 * blocks.moe->width;
  json["moe_router_topk"] = 1;
  json["norm_epsilon"] = model.norm_eps;
  json["num_hidden_layers"] = 2 * model.num_blocks();
  json["num_query_groups"] = blocks.cca.any()->num_key_heads;
  json["partial_rotary_factor"] = blocks.cca.any()->rotary_factor;
  json["rope_theta"] = blocks.cca.whole ? blocks.cca.whole->rope_theta : kUnusedTheta;
  json["swa_layers"] = nullptr;
  json["swa_rotary_base"] = nullptr;
  json["zaya_mlp_expansion"] = router_width(blocks);
  if (blocks.cca.sliding) write_legacy_windows(model, blocks, json);
}

}  // namespace

bool states_zaya(const ModelSpec& model) {
  const HfBlocks blocks(model);
  if (!blocks.cca.any() || !blocks.moe || blocks.odd) return false;
  if (blocks.attention.any() || blocks.linear || blocks.mlp) return false;
  if (!blocks.cca.one_reach()) {
    CcaSpec sliding = *blocks.cca.sliding;
    const CcaSpec& whole = *blocks.cca.whole;
    sliding.window = whole.window, sliding.rope_theta = whole.rope_theta;
    sliding.rotary_factor = whole.rotary_factor;
    if (sliding != whole) return false;
  }
  return std::holds_alternative<MlpRouterSpec>(blocks.moe->router) &&
         blocks.moe->shared.width == 0 && model.scaled_embedding() && model.tied_head &&
         !model.zero_centered_norm;
}

void write_zaya(const ModelSpec& model, HfLayout layout, Json& json) {
  const HfBlocks blocks(model);
  const CcaSpec& mixer = *blocks.cca.any();
  layout == HfLayout::kNative ? write_native(model, blocks, json)
                              : write_legacy(model, blocks, json);
  json["attention_bias"] = false;
  json["cca_time0"] = 2;
  json["cca_time1"] = 2;
  json["head_dim"] = mixer.head_dim;
  json["lm_head_bias"] = false;
  json["num_attention_heads"] = mixer.num_query_heads;
  json["num_experts"] = blocks.moe->num_experts;
  json["num_key_value_heads"] = mixer.num_key_heads;
}

}  // namespace ashlar::models
