// ZAYA1's config.json, in the three forms that were published.
#include <algorithm>

#include "ashlar/models/hf/family.h"
#include "ashlar/models/hf/reader.h"

namespace ashlar::models {
namespace {

// --- reading ---

// The values that the released code assumes where a config is silent.
constexpr double kDefaultTheta = 5e6;
constexpr double kDefaultThetaSliding = 1e4;
constexpr double kDefaultRotary = 0.5;
constexpr double kDefaultEps = 1e-5;
constexpr int64_t kDefaultPositions = 131072;
constexpr int64_t kDefaultEos = 106;

// Checks what every ZAYA1 has, whatever the form: the opposite would be another architecture.
void require_architecture(const HfFields& fields) {
  for (const char* key : {"zaya_use_mod", "zaya_use_eda", "zaya_high_prec", "scale_residual_merge",
                          "gated_linear_unit", "cca", "tie_word_embeddings"})
    fields.only(key, true, "every released ZAYA1 has it");
  for (const char* key : {"attention_bias", "lm_head_bias", "add_bias_linear"})
    fields.only(key, false, "ZAYA1 has no such bias");
  fields.only("clamp_temp", false, "the temperature is used linearly");
  fields.only("activation_func", "swiglu", "the experts are SwiGLU");
  fields.only("hidden_act", "silu", "the experts are SwiGLU");
  fields.only("attention_dropout", 0, "ZAYA1 has no dropout");
  fields.only("cca_time0", 2, "the convolutions have two taps");
  fields.only("cca_time1", 2, "the convolutions have two taps");
  for (const char* key : {"num_experts_per_tok", "moe_router_topk"})
    fields.only(key, 1, "a token goes to one expert");
  if (fields.has("rope_scaling") && fields.at("rope_scaling").is_object())
    fields.fail(
        "rope_scaling",
        "false or null: supported are rotary embeddings without scaling, of any rope_theta and "
        "partial_rotary_factor");
  if (fields.has("quantization_config"))
    fields.fail("quantization_config",
                "no quantisation: take the BF16 or F32 release of the model");
}

// zaya_layers: ['a', E, 'a', E, ...].  Returns E and checks the alternation.
int64_t experts_of_layers(const HfFields& fields) {
  const std::string
      key = "zaya_layers",
      expected = "a list of 'a' and the number of experts in turn, the same number throughout";
  const Json& list = fields.at(key);
  if (!list.is_array() || list.empty() || list.size() % 2 != 0) fields.fail(key, expected);
  int64_t experts = 0;
  for (size_t n = 0; n < list.size(); n += 2) {
    const auto value = integer_of(list[n + 1]);
    if (list[n] != "a" || !value || *value < 1 || *value > kMaxExperts) fields.fail(key, expected);
    if (experts != 0 && *value != experts) fields.fail(key, expected);
    experts = *value;
  }
  return experts;
}

// The number of sub-layers of a legacy config.  Its lists tell where there are any, because
// num_hidden_layers is stale beside them.
int64_t legacy_sub_layers(const HfFields& fields, std::map<std::string, std::string>& keys) {
  int64_t count = 0;
  std::string key;
  for (const char* list : {"zaya_layers", "cca_num_q_heads", "num_query_groups_list",
                           "ffn_hidden_size_list", "zaya_mlp_expansion"}) {
    if (!fields.has(list) || !fields.at(list).is_array()) continue;
    const int64_t length = int64_t(fields.at(list).size());
    ASHLAR_REQUIRE(key.empty() || length == count, kData,
                   "{}: {} has {} entries but {} has {}; expected one entry per sub-layer in each",
                   fields.source(), fields.find(list), length, key, count);
    if (key.empty()) count = length, key = fields.find(list);
  }
  fields.find("num_hidden_layers");  // counts as asked for beside lists, too
  if (key.empty()) count = fields.integer("num_hidden_layers", 2, 2 * kMaxLayers);
  keys["num_hidden_layers"] = key.empty() ? "num_hidden_layers" : key;
  ASHLAR_REQUIRE(
      count >= 2 && count % 2 == 0 && count <= 2 * kMaxLayers, kData,
      "{}: {} states {} sub-layers; expected an even number up to {}, attention and experts "
      "in turn",
      fields.source(), keys["num_hidden_layers"], count, 2 * kMaxLayers);
  return count;
}

// swa_layers: the number of previous tokens that a sub-layer sees, 0 or null: all.
void read_legacy_windows(const HfFields& fields, ModelKeys& model) {
  model.layer_types.assign(size_t(model.num_hidden_layers), LayerType::kHybrid);
  if (!fields.has("swa_layers")) {
    if (fields.has("sliding_window") && fields.at("sliding_window") != 0 &&
        fields.at("sliding_window") != false)
      fields.fail("sliding_window", "null: in the legacy form swa_layers states the windows");
    return;
  }
  const Json& list = fields.at("swa_layers");
  const std::string expected = fmt::format(
      "a list of {} integers, one per sub-layer: 0, or the same number of previous tokens on "
      "attention sub-layers (even places)",
      2 * model.num_hidden_layers);
  if (!list.is_array() || int64_t(list.size()) != 2 * model.num_hidden_layers)
    fields.fail("swa_layers", expected);
  for (size_t n = 0; n < list.size(); ++n) {
    const auto value = list[n].is_null() ? std::optional<int64_t>(0) : integer_of(list[n]);
    if (!value || *value < 0 || *value >= INT32_MAX) fields.fail("swa_layers", expected);
    if (*value == 0) continue;
    if (n % 2 != 0 || (model.sliding_window != 0 && model.sliding_window != *value + 1))
      fields.fail("swa_layers", expected);
    model.sliding_window = *value + 1;  // ours counts the token itself, the file's does not
    model.layer_types[n / 2] = LayerType::kHybridSliding;
  }
}

void read_common(const HfFields& fields, SizeReader& size, ModelKeys& model) {
  model.vocab_size = size.scalar("vocab_size", "vocab_size", kMaxSize);
  model.hidden_size = size.scalar("hidden_size", "hidden_size", kMaxSize);
  model.partial_rotary_factor = fields.positive_or("partial_rotary_factor", kDefaultRotary);
  model.rope_theta = fields.positive_or("rope_theta", kDefaultTheta);
  model.rope_theta_sliding =
      fields.has("swa_rotary_base") ? fields.positive("swa_rotary_base") : kDefaultThetaSliding;
  model.max_position_embeddings =
      fields.integer_or("max_position_embeddings", kDefaultPositions, 1, INT32_MAX);
  model.pad_token_id = token_id(fields, "pad_token_id", 0);
  model.bos_token_id = token_id(fields, "bos_token_id", 2);
  model.eos_token_ids = token_ids(fields, "eos_token_id", {kDefaultEos});
}

int64_t legacy_head_dim(const HfFields& fields, SizeReader& size) {
  if (!fields.has("cca_num_q_heads"))
    return size.first("head_dim", {"head_dim", "kv_channels"}, kMaxHeads);
  if (fields.has("kv_channels")) return size.scalar("head_dim", "kv_channels", kMaxHeads);
  const int64_t hidden = fields.integer("hidden_size", 1, kMaxSize);
  const int64_t heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  ASHLAR_REQUIRE(
      hidden % heads == 0, kData,
      "{}: hidden_size is {} and num_attention_heads is {}; expected a multiple of it, or "
      "kv_channels",
      fields.source(), hidden, heads);
  size.keys["head_dim"] = "hidden_size / num_attention_heads";
  return hidden / heads;
}

int64_t legacy_expert_width(const HfFields& fields, SizeReader& size) {
  const std::string native = "moe_intermediate_size";
  const int64_t fused = size.first(
      native, {"ffn_hidden_size", "ffn_hidden_size_list", "intermediate_size"}, 2 * kMaxSize);
  ASHLAR_REQUIRE(fused % 2 == 0, kData,
                 "{}: {} is {}; expected an even number, gate and up rows of an expert together",
                 fields.source(), size.keys[native], fused);
  return fused / 2;  // the legacy form states gate and up together
}

void read_legacy(const HfFields& fields, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  read_common(fields, size, model);
  model.num_hidden_layers = legacy_sub_layers(fields, config.keys) / 2;
  model.num_attention_heads =
      size.first("num_attention_heads", {"cca_num_q_heads", "num_attention_heads"}, kMaxHeads);
  model.head_dim = legacy_head_dim(fields, size);
  model.num_key_value_heads =
      size.first("num_key_value_heads",
                 {"num_query_groups_list", "num_query_groups", "num_key_value_heads"}, kMaxHeads);
  model.moe_intermediate_size = legacy_expert_width(fields, size);
  if (fields.has("num_experts") || fields.has("num_moe_experts") || !fields.has("zaya_layers")) {
    model.num_experts = size.first("num_experts", {"num_experts", "num_moe_experts"}, kMaxExperts);
  } else {
    model.num_experts = experts_of_layers(fields);
    config.keys["num_experts"] = fields.find("zaya_layers");
  }
  model.router_hidden_size = size.uniform("router_hidden_size", "zaya_mlp_expansion", kMaxSize);
  model.rms_norm_eps =
      fields.positive_or(fields.has("norm_epsilon") ? "norm_epsilon" : "rms_norm_eps", kDefaultEps);
  if (!fields.has("rope_theta"))
    fields.only("rope_parameters", nullptr, "the legacy form states rope_theta");
  read_legacy_windows(fields, model);
}

void read_layer_types(const HfFields& fields, ModelKeys& model) {
  model.layer_types.assign(size_t(model.num_hidden_layers), LayerType::kHybrid);
  bool slides = false;
  if (fields.has("layer_types")) {
    const Json& list = fields.at("layer_types");
    const std::string expected =
        fmt::format("a list of num_hidden_layers = {} names, each \"hybrid\" or \"hybrid_sliding\"",
                    model.num_hidden_layers);
    if (!list.is_array() || int64_t(list.size()) != model.num_hidden_layers)
      fields.fail("layer_types", expected);
    for (size_t n = 0; n < list.size(); ++n) {
      if (list[n] != "hybrid" && list[n] != "hybrid_sliding") fields.fail("layer_types", expected);
      if (list[n] != "hybrid_sliding") continue;
      model.layer_types[n] = LayerType::kHybridSliding;
      slides = true;
    }
  }
  if (slides)
    model.sliding_window = fields.integer("sliding_window", 1, INT32_MAX);
  else
    fields.only("sliding_window", nullptr, "no entry of layer_types is \"hybrid_sliding\"");
}

// rope_parameters.hybrid and .hybrid_sliding, each {rope_type, rope_theta, partial_rotary_factor};
// what they leave out keeps what read_common() found.
void read_rope(const HfFields& fields, ModelKeys& model) {
  if (!fields.has("rope_parameters")) return;
  const Json& groups = fields.at("rope_parameters");
  if (!groups.is_object())
    fields.fail("rope_parameters", "an object with the keys \"hybrid\" and \"hybrid_sliding\"");
  std::optional<double> factor;
  for (const LayerType type : {LayerType::kHybrid, LayerType::kHybridSliding}) {
    const bool sliding = type == LayerType::kHybridSliding;
    const std::string name = sliding ? "hybrid_sliding" : "hybrid";
    const bool used = std::find(model.layer_types.begin(), model.layer_types.end(), type) !=
                      model.layer_types.end();
    const auto at = groups.find(name);
    if (at == groups.end() || at->is_null()) {
      if (used)
        fields.fail("rope_parameters",
                    fmt::format("an entry \"{}\", which layer_types names", name));
      continue;
    }
    const HfFields entry(*at, fmt::format("{}: rope_parameters.{}", fields.source(), name));
    double& theta = sliding ? model.rope_theta_sliding : model.rope_theta;
    theta = entry.positive_or("rope_theta", theta);
    if (!used) continue;
    entry.only("rope_type", "default",
               "supported are rotary embeddings without scaling, of any rope_theta and "
               "partial_rotary_factor");
    const double own = entry.positive_or("partial_rotary_factor", model.partial_rotary_factor);
    if (factor && *factor != own)
      entry.fail("partial_rotary_factor", fmt::format("{}, as in rope_parameters.hybrid", *factor));
    factor = own;
  }
  if (factor) model.partial_rotary_factor = *factor;
}

void read_native(const HfFields& fields, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  read_common(fields, size, model);
  model.num_hidden_layers = size.scalar("num_hidden_layers", "num_hidden_layers", kMaxLayers);
  model.num_attention_heads = size.scalar("num_attention_heads", "num_attention_heads", kMaxHeads);
  model.num_key_value_heads = size.scalar("num_key_value_heads", "num_key_value_heads", kMaxHeads);
  model.head_dim = size.scalar("head_dim", "head_dim", kMaxHeads);
  model.moe_intermediate_size =
      size.scalar("moe_intermediate_size", "moe_intermediate_size", kMaxSize);
  model.num_experts = size.scalar("num_experts", "num_experts", kMaxExperts);
  model.router_hidden_size = size.scalar("router_hidden_size", "router_hidden_size", kMaxSize);
  model.rms_norm_eps = fields.positive_or("rms_norm_eps", kDefaultEps);
  read_layer_types(fields, model);
  read_rope(fields, model);
}

// A config names no form.  Keys that only one form has tell; lists tell 2025 from 2026.
HfForm form_of(const HfFields& fields) {
  for (const char* key : {"moe_intermediate_size", "router_hidden_size", "layer_types"})
    if (fields.has(key)) return HfForm::kNative;
  for (const char* key :
       {"zaya_layers", "cca_num_q_heads", "num_query_groups_list", "ffn_hidden_size_list"})
    if (fields.has(key) && fields.at(key).is_array()) return HfForm::kLegacy2025;
  for (const char* key : {"zaya_mlp_expansion", "ffn_hidden_size", "num_query_groups"})
    if (fields.has(key)) return HfForm::kLegacy2026;
  ASHLAR_FAIL(
      kData,
      "{}: moe_intermediate_size and router_hidden_size (native form) are missing, and so are "
      "ffn_hidden_size and zaya_mlp_expansion (legacy); expected the config.json of a ZAYA1 "
      "model",
      fields.source());
}

// Which dim of which tensor shows each size.
void add_sizes(HfConfig& config) {
  const ModelKeys& model = config.model;
  const auto key = [&](const char* native) { return config.key_of(native); };
  const std::string heads = key("num_attention_heads") + " * " + key("head_dim");
  const std::string kv_heads = key("num_key_value_heads") + " * " + key("head_dim");
  const bool native = config.form == HfForm::kNative;
  const std::string fused =
      native ? "2 * " + key("moe_intermediate_size") : key("moe_intermediate_size");
  const std::string block = "model.layers.0.";
  config.sizes = {
      {block + "self_attn.qk_norm.temp", 0, key("num_key_value_heads"), model.num_key_value_heads},
      {block + "self_attn.qkv_proj.conv_qk_grouped.weight", 1, key("head_dim"), model.head_dim},
      {block + "self_attn.qkv_proj.q_proj.weight", 0, heads, model.q_dim()},
      {block + "self_attn.qkv_proj.k_proj.weight", 0, kv_heads, model.kv_dim()},
      {block + "mlp.gate.down_proj.weight", 0, key("router_hidden_size"), model.router_hidden_size},
      {block + "mlp.gate.router_mlp.out_proj.weight", 0, key("num_experts") + " + 1",
       model.num_experts + 1},
      {block + "mlp.experts.gate_up_proj", 1, fused, 2 * model.moe_intermediate_size},
  };
}

// What older releases named otherwise.
constexpr HfAlias kAliases[] = {
    {"rope_theta", "rotary_base"}, {"partial_rotary_factor", "rope_pct"}, {"zaya_", "smoe_"}};

HfConfig read_zaya(const HfFields& as_written) {
  const HfFields fields = as_written.with(kAliases);
  require_architecture(fields);
  HfConfig config;
  config.form = form_of(fields);
  config.form == HfForm::kNative ? read_native(fields, config) : read_legacy(fields, config);
  add_sizes(config);
  return config;
}

// --- writing ---

bool states_zaya(const ModelKeys& keys) {
  const auto zaya = [](const LayerType& type) {
    return type == LayerType::kHybrid || type == LayerType::kHybridSliding;
  };
  return keys.residual == Residual::kScaled && keys.tie_word_embeddings &&
         !keys.zero_centered_norm &&
         std::all_of(keys.layer_types.begin(), keys.layer_types.end(), zaya);
}

bool uses(const ModelKeys& spec, LayerType type) {
  return std::find(spec.layer_types.begin(), spec.layer_types.end(), type) !=
         spec.layer_types.end();
}

// transformers rejects a sliding_window without sliding blocks and rope_parameters of unused types.
void write_native(const ModelKeys& spec, Json& json) {
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
}

void write_legacy(const ModelKeys& spec, Json& json) {
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
}

void write_zaya(const ModelKeys& keys, HfLayout layout, Json& json) {
  layout == HfLayout::kNative ? write_native(keys, json) : write_legacy(keys, json);
  json["attention_bias"] = false;
  json["cca_time0"] = 2;
  json["cca_time1"] = 2;
  json["lm_head_bias"] = false;
  json["num_experts"] = keys.num_experts;
}

}  // namespace

const HfFamily kHfZaya{.model_type = "zaya",
                       .architecture = "ZayaForCausalLM",
                       .states = states_zaya,
                       .read = read_zaya,
                       .write = write_zaya};

}  // namespace ashlar::models
