#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/hf_config.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"

namespace ashlar::checkpoint {
namespace {

bool uses(const ZayaSpec& spec, LayerType type) {
  return std::find(spec.layer_types.begin(), spec.layer_types.end(), type) !=
         spec.layer_types.end();
}

// -1: none
Json token(int64_t id) {
  return id < 0 ? Json(nullptr) : Json(id);
}

// transformers rejects a sliding_window without sliding blocks and rope_parameters of unused types.
Json native_json(const ZayaSpec& spec) {
  Json json;
  json["hidden_act"] = "silu";
  json["initializer_range"] = 0.02;
  json["layer_types"] = Json::array();
  for (const LayerType type : spec.layer_types)
    json["layer_types"].push_back(type == LayerType::kHybrid ? "hybrid" : "hybrid_sliding");
  json["moe_intermediate_size"] = spec.moe_intermediate_size;
  json["num_experts_per_tok"] = 1;
  json["num_hidden_layers"] = spec.num_hidden_layers;
  json["output_router_logits"] = false;
  json["rms_norm_eps"] = spec.rms_norm_eps;
  json["router_hidden_size"] = spec.router_hidden_size;
  const auto rope = [&](double theta) {
    return Json{{"rope_type", "default"},
                {"rope_theta", theta},
                {"partial_rotary_factor", spec.partial_rotary_factor}};
  };
  if (uses(spec, LayerType::kHybrid)) json["rope_parameters"]["hybrid"] = rope(spec.rope_theta);
  json["sliding_window"] = nullptr;
  if (uses(spec, LayerType::kHybridSliding)) {
    json["rope_parameters"]["hybrid_sliding"] = rope(spec.rope_theta_sliding);
    json["sliding_window"] = spec.sliding_window;
  }
  return json;
}

Json legacy_json(const ZayaSpec& spec) {
  Json json;
  for (const char* flag : {"cca", "gated_linear_unit", "residual_in_fp32", "scale_residual_merge",
                           "zaya_high_prec", "zaya_use_eda", "zaya_use_mod"})
    json[flag] = true;
  for (const char* flag : {"add_bias_linear", "clamp_temp", "rope_scaling"}) json[flag] = false;
  json["activation_func"] = "swiglu";
  json["ffn_hidden_size"] = 2 * spec.moe_intermediate_size;
  json["moe_router_topk"] = 1;
  json["norm_epsilon"] = spec.rms_norm_eps;
  json["num_hidden_layers"] = 2 * spec.num_hidden_layers;
  json["num_query_groups"] = spec.num_key_value_heads;
  json["partial_rotary_factor"] = spec.partial_rotary_factor;
  json["rope_theta"] = spec.rope_theta;
  json["swa_layers"] = nullptr;
  json["swa_rotary_base"] = nullptr;
  json["zaya_mlp_expansion"] = spec.router_hidden_size;
  if (uses(spec, LayerType::kHybridSliding)) {
    ASHLAR_REQUIRE(
        spec.sliding_window >= 2, kConfig,
        "sliding_window is {}; the legacy layout can state 2 and more: export the native one",
        spec.sliding_window);
    json["swa_layers"] = Json::array();
    for (const LayerType type : spec.layer_types) {
      json["swa_layers"].push_back(type == LayerType::kHybrid ? 0 : spec.sliding_window - 1);
      json["swa_layers"].push_back(0);
    }
    json["swa_rotary_base"] = spec.rope_theta_sliding;
  }
  return json;
}

}  // namespace

std::string to_hf_config(const ZayaSpec& spec, DType dtype, HfLayout layout) {
  Json json = layout == HfLayout::kNative ? native_json(spec) : legacy_json(spec);
  json["architectures"] = {"ZayaForCausalLM"};
  json["model_type"] = "zaya";
  json["dtype"] = dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF32 ? "float32" : "float64";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["bos_token_id"] = token(spec.bos_token_id);
  json["cca_time0"] = 2;
  json["cca_time1"] = 2;
  json["eos_token_id"] = token(spec.eos_token_id);
  json["head_dim"] = spec.head_dim;
  json["hidden_size"] = spec.hidden_size;
  json["lm_head_bias"] = false;
  json["max_position_embeddings"] = spec.max_position_embeddings;
  json["num_attention_heads"] = spec.num_attention_heads;
  json["num_experts"] = spec.num_experts;
  json["num_key_value_heads"] = spec.num_key_value_heads;
  json["pad_token_id"] = token(spec.pad_token_id);
  json["tie_word_embeddings"] = true;
  json["vocab_size"] = spec.vocab_size;
  return json.dump(2) + "\n";
}

std::string to_hf_generation_config(const ZayaSpec& spec) {
  const Json json = {{"_from_model_config", true},
                     {"bos_token_id", token(spec.bos_token_id)},
                     {"eos_token_id", token(spec.eos_token_id)},
                     {"pad_token_id", token(spec.pad_token_id)}};
  return json.dump(2) + "\n";
}

}  // namespace ashlar::checkpoint
