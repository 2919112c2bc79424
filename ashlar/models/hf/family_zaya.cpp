// Reads ZAYA1's config.json, in the three forms that were published.
#include "ashlar/models/hf/family_zaya.h"

#include <algorithm>

#include "ashlar/models/hf/blocks.h"
#include "ashlar/models/hf/reader.h"

namespace ashlar::models {
namespace {

// The values that the released code assumes where a config is silent.
constexpr double kDefaultTheta = 5e6;
constexpr double kDefaultThetaSliding = 1e4;
constexpr double kDefaultRotary = 0.5;
constexpr double kDefaultEps = 1e-5;
constexpr int64_t kDefaultPositions = 131072;
constexpr int64_t kDefaultEos = 106;

// The blocks that a config states: those without a window, and those with one.
struct Zaya {
  CcaSpec whole, sliding;
  MoeSpec moe;
  MlpRouterSpec router;
  std::vector<bool> slides;  // of each block

  template <typename Change>
  void change_mixers(Change change) {
    change(whole), change(sliding);
  }
};

// Checks the choices of every ZAYA1, in any form; other values would be another architecture.
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

// The number of sub-layers of a legacy config: the length of its lists, if there are any, because
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
void read_legacy_windows(const HfFields& fields, Zaya& zaya) {
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
      2 * zaya.slides.size());
  if (!list.is_array() || list.size() != 2 * zaya.slides.size())
    fields.fail("swa_layers", expected);
  for (size_t n = 0; n < list.size(); ++n) {
    const auto value = list[n].is_null() ? std::optional<int64_t>(0) : integer_of(list[n]);
    if (!value || *value < 0 || *value >= INT32_MAX) fields.fail("swa_layers", expected);
    if (*value == 0) continue;
    int64_t& window = zaya.sliding.window;
    if (n % 2 != 0 || (window != 0 && window != *value + 1)) fields.fail("swa_layers", expected);
    window = *value + 1;  // ours counts the token itself, the file's does not
    zaya.slides[n / 2] = true;
  }
}

void read_common(const HfFields& fields, SizeReader& size, ModelSpec& model, Zaya& zaya) {
  model.vocab_size = size.scalar("vocab_size", "vocab_size", kMaxSize);
  model.hidden_size = size.scalar("hidden_size", "hidden_size", kMaxSize);
  const double rotary = fields.positive_or("partial_rotary_factor", kDefaultRotary);
  zaya.change_mixers([&](CcaSpec& mixer) { mixer.rotary_factor = rotary; });
  zaya.whole.rope_theta = fields.positive_or("rope_theta", kDefaultTheta);
  zaya.sliding.rope_theta =
      fields.has("swa_rotary_base") ? fields.positive("swa_rotary_base") : kDefaultThetaSliding;
  model.max_positions =
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

void set_heads(int64_t query_heads, int64_t key_heads, int64_t head_dim, Zaya& zaya) {
  zaya.change_mixers([&](CcaSpec& mixer) {
    mixer.num_query_heads = query_heads;
    mixer.num_key_heads = key_heads;
    mixer.head_dim = head_dim;
  });
}

void read_legacy(const HfFields& fields, HfConfig& config, Zaya& zaya) {
  ModelSpec& model = config.model;
  SizeReader size{fields, config.keys};
  read_common(fields, size, model, zaya);
  zaya.slides.assign(size_t(legacy_sub_layers(fields, config.keys) / 2), false);
  const int64_t query_heads =
      size.first("num_attention_heads", {"cca_num_q_heads", "num_attention_heads"}, kMaxHeads);
  const int64_t head_dim = legacy_head_dim(fields, size);
  const int64_t key_heads =
      size.first("num_key_value_heads",
                 {"num_query_groups_list", "num_query_groups", "num_key_value_heads"}, kMaxHeads);
  set_heads(query_heads, key_heads, head_dim, zaya);
  zaya.moe.width = legacy_expert_width(fields, size);
  if (fields.has("num_experts") || fields.has("num_moe_experts") || !fields.has("zaya_layers")) {
    zaya.moe.num_experts =
        size.first("num_experts", {"num_experts", "num_moe_experts"}, kMaxExperts);
  } else {
    zaya.moe.num_experts = experts_of_layers(fields);
    config.keys["num_experts"] = fields.find("zaya_layers");
  }
  zaya.router.width = size.uniform("router_hidden_size", "zaya_mlp_expansion", kMaxSize);
  model.norm_eps =
      fields.positive_or(fields.has("norm_epsilon") ? "norm_epsilon" : "rms_norm_eps", kDefaultEps);
  if (!fields.has("rope_theta"))
    fields.only("rope_parameters", nullptr, "the legacy form states rope_theta");
  read_legacy_windows(fields, zaya);
}

void read_layer_types(const HfFields& fields, Zaya& zaya) {
  bool slides = false;
  if (fields.has("layer_types")) {
    const Json& list = fields.at("layer_types");
    const std::string expected =
        fmt::format("a list of num_hidden_layers = {} names, each \"hybrid\" or \"hybrid_sliding\"",
                    zaya.slides.size());
    if (!list.is_array() || list.size() != zaya.slides.size()) fields.fail("layer_types", expected);
    for (size_t n = 0; n < list.size(); ++n) {
      if (list[n] != "hybrid" && list[n] != "hybrid_sliding") fields.fail("layer_types", expected);
      if (list[n] != "hybrid_sliding") continue;
      zaya.slides[n] = slides = true;
    }
  }
  if (slides)
    zaya.sliding.window = fields.integer("sliding_window", 1, INT32_MAX);
  else
    fields.only("sliding_window", nullptr, "no entry of layer_types is \"hybrid_sliding\"");
}

// rope_parameters.hybrid and .hybrid_sliding, each {rope_type, rope_theta, partial_rotary_factor};
// keys that they leave out keep the values of read_common().
void read_rope(const HfFields& fields, Zaya& zaya) {
  if (!fields.has("rope_parameters")) return;
  const Json& groups = fields.at("rope_parameters");
  if (!groups.is_object())
    fields.fail("rope_parameters", "an object with the keys \"hybrid\" and \"hybrid_sliding\"");
  for (const bool sliding : {false, true}) {
    const std::string name = sliding ? "hybrid_sliding" : "hybrid";
    const bool used =
        std::find(zaya.slides.begin(), zaya.slides.end(), sliding) != zaya.slides.end();
    const auto at = groups.find(name);
    if (at == groups.end() || at->is_null()) {
      if (used)
        fields.fail("rope_parameters",
                    fmt::format("an entry \"{}\", which layer_types names", name));
      continue;
    }
    const HfFields entry(*at, fmt::format("{}: rope_parameters.{}", fields.source(), name));
    CcaSpec& mixer = sliding ? zaya.sliding : zaya.whole;
    mixer.rope_theta = entry.positive_or("rope_theta", mixer.rope_theta);
    if (!used) continue;
    entry.only("rope_type", "default",
               "supported are rotary embeddings without scaling, of any rope_theta and "
               "partial_rotary_factor");
    mixer.rotary_factor = entry.positive_or("partial_rotary_factor", mixer.rotary_factor);
  }
}

void read_native(const HfFields& fields, HfConfig& config, Zaya& zaya) {
  ModelSpec& model = config.model;
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  read_common(fields, size, model, zaya);
  zaya.slides.assign(size_t(read("num_hidden_layers", kMaxLayers)), false);
  const int64_t query_heads = read("num_attention_heads", kMaxHeads);
  const int64_t key_heads = read("num_key_value_heads", kMaxHeads);
  set_heads(query_heads, key_heads, read("head_dim", kMaxHeads), zaya);
  zaya.moe.width = read("moe_intermediate_size", kMaxSize);
  zaya.moe.num_experts = read("num_experts", kMaxExperts);
  zaya.router.width = read("router_hidden_size", kMaxSize);
  model.norm_eps = fields.positive_or("rms_norm_eps", kDefaultEps);
  read_layer_types(fields, zaya);
  read_rope(fields, zaya);
}

// A config does not name its form.  Keys that only one form has identify it; lists tell 2025 from
// 2026.
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

// Lists the dim of a tensor that shows each size.
void add_sizes(const Zaya& zaya, HfConfig& config) {
  const CcaSpec& mixer = zaya.whole;
  const MoeSpec& moe = zaya.moe;
  const auto key = [&](const char* native) { return config.key_of(native); };
  const std::string heads = key("num_attention_heads") + " * " + key("head_dim");
  const std::string kv_heads = key("num_key_value_heads") + " * " + key("head_dim");
  const bool native = config.form == HfForm::kNative;
  const std::string fused =
      native ? "2 * " + key("moe_intermediate_size") : key("moe_intermediate_size");
  const std::string block = "model.layers.0.";
  config.sizes = {
      {block + "self_attn.qk_norm.temp", 0, key("num_key_value_heads"), mixer.num_key_heads},
      {block + "self_attn.qkv_proj.conv_qk_grouped.weight", 1, key("head_dim"), mixer.head_dim},
      {block + "self_attn.qkv_proj.q_proj.weight", 0, heads, mixer.q_dim()},
      {block + "self_attn.qkv_proj.k_proj.weight", 0, kv_heads, mixer.kv_dim()},
      {block + "mlp.gate.down_proj.weight", 0, key("router_hidden_size"), zaya.router.width},
      {block + "mlp.gate.router_mlp.out_proj.weight", 0, key("num_experts") + " + 1",
       moe.num_experts + 1},
      {block + "mlp.experts.gate_up_proj", 1, fused, 2 * moe.width},
  };
}

// The names of older releases.
constexpr HfAlias kAliases[] = {
    {"rope_theta", "rotary_base"}, {"partial_rotary_factor", "rope_pct"}, {"zaya_", "smoe_"}};

HfConfig read_zaya(const HfFields& as_written) {
  const HfFields fields = as_written.with(kAliases);
  require_architecture(fields);
  HfConfig config;
  config.form = form_of(fields);
  Zaya zaya;
  config.form == HfForm::kNative ? read_native(fields, config, zaya)
                                 : read_legacy(fields, config, zaya);
  zaya.moe.router = zaya.router;
  for (const bool slides : zaya.slides)
    config.model.blocks.push_back({slides ? zaya.sliding : zaya.whole, zaya.moe});
  add_sizes(zaya, config);
  return config;
}

}  // namespace

const HfFamily kHfZaya{.model_type = "zaya",
                       .architecture = "ZayaForCausalLM",
                       .states = states_zaya,
                       .read = read_zaya,
                       .write = write_zaya};

}  // namespace ashlar::models
