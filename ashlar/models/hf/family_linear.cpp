// The config.json of models with linear mixers: MiniMaxForCausalLM, lightning attention and softmax
// attention with experts in every block, and Qwen3NextForCausalLM, gated DeltaNet and gated softmax
// attention with experts in all blocks or some.
//
// Source   MiniMax-01, arXiv 2501.08313; Qwen3-Next's release; docs/hugging-face.md.
#include <algorithm>
#include <cmath>

#include "ashlar/models/hf/family_moe.h"

namespace ashlar::models {
namespace {

constexpr HfArithmetic kMiniMax{.residual = Residual::kNormed};
constexpr HfArithmetic kQwen3Next{.norm = QkNorm::kRms, .gated = true, .states_bias = true};
constexpr HfDefaults kMiniMaxDefaults{.norm_eps = 1e-5,
                                      .rope_theta = 1e6,
                                      .positions = 131072,
                                      .key_heads = 8,
                                      .null_key_heads = false};
constexpr HfDefaults kQwen3NextDefaults{.rotary_factor = 0.25,
                                        .key_heads = 2,
                                        .head_dim = 256,
                                        .null_key_heads = false,
                                        .null_head_dim = false,
                                        .states_bias = true};

bool is_linear(const LayerType& type) {
  return type.mixer == LinearSpec::kKind;
}
bool is_softmax(const LayerType& type) {
  return type.mixer == AttentionSpec::kKind;
}
bool has_linear(const ModelKeys& keys) {
  return keys.has_mixer(LinearSpec::kKind);
}

// --- tensors ---

constexpr HfMixerTensor kMiniMaxMixers[] = {
    {LinearSpec::kKind,
     "self_attn.qkv_proj.weight",
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
    {LinearSpec::kKind, "self_attn.output_gate.weight", {"self_attn.gate_proj.weight"}},
    {LinearSpec::kKind, "self_attn.out_proj.weight", {"self_attn.o_proj.weight"}},
};
constexpr HfMixerTensor kQwen3NextMixers[] = {
    {AttentionSpec::kKind,
     "self_attn.q_proj.weight",
     {"self_attn.q_proj.weight", "self_attn.gate_proj.weight"}},
    {AttentionSpec::kKind,
     "self_attn.q_proj.bias",
     {"self_attn.q_proj.bias", "self_attn.gate_proj.bias"}},
    {LinearSpec::kKind,
     "linear_attn.in_proj_qkvz.weight",
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
      "self_attn.gate_proj.weight"}},
    {LinearSpec::kKind,
     "linear_attn.in_proj_ba.weight",
     {"self_attn.b_proj.weight", "self_attn.a_proj.weight"}},
    {LinearSpec::kKind, "linear_attn.conv1d.weight", {"self_attn.conv.weight"}},
    {LinearSpec::kKind, "linear_attn.A_log", {"self_attn.A_log"}},
    {LinearSpec::kKind, "linear_attn.dt_bias", {"self_attn.dt_bias"}},
    {LinearSpec::kKind, "linear_attn.norm.weight", {"self_attn.norm.weight"}},
    {LinearSpec::kKind, "linear_attn.out_proj.weight", {"self_attn.o_proj.weight"}},
};

// Lightning's decays over a block of so many tokens, as transformers computes them once.
constexpr int64_t kBlockSize = 256;

// Of a head that forgets at `slope` a token, numbers from 1 on.
double slope_of(const LinearSpec& spec, int64_t head) {
  return std::exp2(-8.0 * double(head + 1) / double(spec.num_value_heads)) * spec.slope_factor;
}

// value(slope, i) of each head and i < count.
template <typename Value>
void fill_heads(const LinearSpec& spec, int64_t count, std::span<float> values, Value value) {
  for (int64_t head = 0; head < spec.num_value_heads; ++head)
    for (int64_t i = 0; i < count; ++i)
      values[size_t(head * count + i)] = float(value(slope_of(spec, head), i));
}

Shape shape_of_tokens(const LinearSpec& spec) {
  return {spec.num_value_heads, kBlockSize, 1};
}

constexpr HfBuffer kMiniMaxBuffers[] = {
    {"self_attn.slope_rate",
     [](const LinearSpec& spec) {
       return Shape{spec.num_value_heads, 1, 1};
     },
     [](const LinearSpec& spec, std::span<float> values) {
       fill_heads(spec, 1, values, [](double slope, int64_t) { return slope; });
     }},
    {"self_attn.query_decay", shape_of_tokens,
     [](const LinearSpec& spec, std::span<float> values) {
       fill_heads(spec, kBlockSize, values,
                  [](double slope, int64_t i) { return std::exp(-slope * double(i + 1)); });
     }},
    {"self_attn.key_decay", shape_of_tokens,
     [](const LinearSpec& spec, std::span<float> values) {
       fill_heads(spec, kBlockSize, values, [](double slope, int64_t i) {
         return std::exp(-slope * double(kBlockSize - i - 1));
       });
     }},
    {"self_attn.diagonal_decay",
     [](const LinearSpec& spec) {
       return Shape{1, spec.num_value_heads, kBlockSize, kBlockSize};
     },
     [](const LinearSpec& spec, std::span<float> values) {
       fill_heads(spec, kBlockSize * kBlockSize, values, [](double slope, int64_t i) {
         const int64_t distance = i / kBlockSize - i % kBlockSize;
         return distance < 0 ? 0.0 : std::exp(-slope * double(distance));
       });
     }},
};

// --- reading ---

// layer_types; where there are none, block l is linear if `linear` says so.
template <typename Linear>
void read_mixers(const HfFields& fields, Linear linear, ModelKeys& model) {
  const int64_t L = model.num_hidden_layers;
  if (!fields.has("layer_types")) {
    for (int64_t l = 0; l < L; ++l)
      if (linear(l)) model.layer_types[size_t(l)].mixer = LinearSpec::kKind;
    return;
  }
  const Json& list = fields.at("layer_types");
  const std::string expected = fmt::format(
      "a list of num_hidden_layers = {} names, each \"full_attention\" or \"linear_attention\"", L);
  if (!list.is_array() || int64_t(list.size()) != L) fields.fail("layer_types", expected);
  for (size_t l = 0; l < list.size(); ++l) {
    if (list[l] != "full_attention" && list[l] != "linear_attention")
      fields.fail("layer_types", expected);
    if (list[l] == "linear_attention") model.layer_types[l].mixer = LinearSpec::kKind;
  }
}

// In place of those of block 0, which may be linear: sizes that tensors of one native tensor show.
void set_sizes(HfConfig& config, const std::string& value_heads, const std::string& value_dim) {
  const ModelKeys& model = config.model;
  const auto key = [&](const char* name) { return config.key_of(name); };
  const auto tensor = [](int64_t block, const char* name) {
    return fmt::format("model.layers.{}.self_attn.{}.weight", block, name);
  };
  config.sizes.clear();
  const int64_t L = model.num_hidden_layers, softmax = first_block(model, is_softmax),
                linear = first_block(model, is_linear);
  if (softmax < L) {
    config.sizes.push_back({tensor(softmax, "k_proj"), 0,
                            key("num_key_value_heads") + " * " + key("head_dim"), model.kv_dim()});
    config.sizes.push_back({tensor(softmax, "o_proj"), 1,
                            key("num_attention_heads") + " * " + key("head_dim"), model.q_dim()});
  }
  if (linear < L)
    config.sizes.push_back({tensor(linear, "o_proj"), 1, value_heads + " * " + value_dim,
                            model.linear_num_value_heads * model.linear_value_head_dim});
}

HfConfig read_minimax(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kMiniMaxDefaults);
  ModelKeys& model = config.model;
  model.residual = Residual::kNormed;
  for (LayerType& type : model.layer_types) type.feed_forward = MoeSpec::kKind;
  read_mixers(
      fields, [](int64_t l) { return l % 2 == 1; }, model);
  const auto factors = [&](const std::string& of) {
    return ResidualFactors{fields.positive_or(of + "_alpha_factor", 1.0),
                           fields.positive_or(of + "_beta_factor", 1.0)};
  };
  model.full_attn = factors("full_attn"), model.mlp = factors("mlp");
  if (has_linear(model)) {
    model.linear_attn = factors("linear_attn");
    model.linear_recurrence = LinearKind::kLightning;
    model.linear_num_key_heads = model.linear_num_value_heads = model.num_attention_heads;
    model.linear_key_head_dim = model.linear_value_head_dim = model.head_dim;
  }
  set_sizes(config, config.key_of("num_attention_heads"), config.key_of("head_dim"));
  read_mixture(fields, "intermediate_size", 2, config);
  if (!fields.has("sliding_window")) return config;
  model.sliding_window = fields.integer("sliding_window", 1, kMaxPositions);
  for (LayerType& type : model.layer_types) type.sliding = is_softmax(type);
  return config;
}

void read_delta_net(const HfFields& fields, HfConfig& config) {
  ModelKeys& model = config.model;
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  model.linear_recurrence = LinearKind::kGatedDelta;
  model.linear_num_key_heads = read("linear_num_key_heads", kMaxHeads);
  model.linear_num_value_heads = read("linear_num_value_heads", kMaxHeads);
  model.linear_key_head_dim = read("linear_key_head_dim", kMaxHeads);
  model.linear_value_head_dim = read("linear_value_head_dim", kMaxHeads);
  constexpr int64_t kTaps = 4;
  model.linear_conv_kernel_dim = fields.integer_or("linear_conv_kernel_dim", kTaps, 1, kMaxHeads);
}

HfConfig read_qwen3_next(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kQwen3NextDefaults);
  ModelKeys& model = config.model;
  model.qk_norm = QkNorm::kRms;
  model.attention_output_gate = model.zero_centered_norm = true;
  const int64_t interval = fields.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  read_mixers(
      fields, [&](int64_t l) { return (l + 1) % interval != 0; }, model);
  if (has_linear(model)) read_delta_net(fields, config);
  const auto key = [&](const char* name) { return has_linear(model) ? config.key_of(name) : ""; };
  set_sizes(config, key("linear_num_value_heads"), key("linear_value_head_dim"));
  read_sparse_blocks(fields, "not supported in this family", model);
  read_mixture(fields, "moe_intermediate_size", 10, config);
  SizeReader size{fields, config.keys};
  const char* shared = "shared_expert_intermediate_size";
  model.shared_expert_intermediate_size = size.scalar(shared, shared, kMaxSize);
  model.shared_expert_gate = true;
  config.sizes.push_back({fmt::format("model.layers.{}.mlp.shared_expert.down_proj.weight",
                                      first_block(model, has_experts)),
                          1, config.key_of(shared), model.shared_expert_intermediate_size});
  model.norm_topk_prob = fields.boolean_or("norm_topk_prob", true);
  read_dense_blocks(fields, config);
  return config;
}

// --- writing ---

bool slides(const ModelKeys& keys) {
  return std::any_of(keys.layer_types.begin(), keys.layer_types.end(),
                     [](const LayerType& type) { return type.sliding; });
}

// Whether all blocks of softmax attention have one.
bool has_common_window(const ModelKeys& keys) {
  return std::all_of(keys.layer_types.begin(), keys.layer_types.end(),
                     [](const LayerType& type) { return type.sliding == is_softmax(type); });
}

bool states_minimax(const ModelKeys& keys) {
  const auto known = [](const LayerType& type) {
    return (is_linear(type) || is_softmax(type)) && has_experts(type);
  };
  const bool lightning = keys.linear_recurrence == LinearKind::kLightning &&
                         keys.linear_num_key_heads == keys.num_attention_heads &&
                         keys.linear_num_value_heads == keys.num_attention_heads &&
                         keys.linear_key_head_dim == keys.head_dim &&
                         keys.linear_value_head_dim == keys.head_dim &&
                         keys.linear_conv_kernel_dim == 0;
  return states_attention_config(keys, kMiniMax) && states_router(keys) && keys.norm_topk_prob &&
         keys.shared_expert_intermediate_size == 0 && (!has_linear(keys) || lightning) &&
         (!slides(keys) || has_common_window(keys)) &&
         std::all_of(keys.layer_types.begin(), keys.layer_types.end(), known);
}

bool states_qwen3_next(const ModelKeys& keys) {
  const auto known = [](const LayerType& type) {
    return is_linear(type) || (is_softmax(type) && !type.sliding);
  };
  const bool delta_net = keys.linear_recurrence == LinearKind::kGatedDelta &&
                         keys.linear_feature_map == LinearMap::kIdentity &&
                         keys.linear_conv_kernel_dim > 0;
  return states_attention_config(keys, kQwen3Next) && states_router(keys) &&
         keys.shared_expert_intermediate_size > 0 && keys.shared_expert_gate &&
         (!has_linear(keys) || delta_net) &&
         first_block(keys, has_experts) < keys.num_hidden_layers &&
         std::all_of(keys.layer_types.begin(), keys.layer_types.end(), known);
}

void write_layer_types(const ModelKeys& keys, Json& json) {
  json["layer_types"] = Json::array();
  for (const LayerType& type : keys.layer_types)
    json["layer_types"].push_back(is_linear(type) ? "linear_attention" : "full_attention");
}

void write_minimax(const ModelKeys& keys, HfLayout, Json& json) {
  write_mixture(keys, json);
  write_layer_types(keys, json);
  json["block_size"] = kBlockSize;
  const auto write = [&](const std::string& of, const ResidualFactors& factors) {
    json[of + "_alpha_factor"] = factors.alpha;
    json[of + "_beta_factor"] = factors.beta;
  };
  write("full_attn", keys.full_attn);
  write("linear_attn", keys.linear_attn);
  write("mlp", keys.mlp);
  json["intermediate_size"] = keys.moe_intermediate_size;
  json["router_jitter_noise"] = 0.0;
  json["sliding_window"] = nullptr;
  if (!slides(keys)) return;
  json["sliding_window"] = keys.sliding_window;
  write_rope(keys, keys.rope_theta_sliding, json);
}

void write_qwen3_next(const ModelKeys& keys, HfLayout, Json& json) {
  write_mixture(keys, json);
  write_bias(keys, json);
  write_sparse_blocks(keys, json);
  write_layer_types(keys, json);
  json["partial_rotary_factor"] = keys.partial_rotary_factor;
  json["rope_parameters"]["partial_rotary_factor"] = keys.partial_rotary_factor;
  json["shared_expert_intermediate_size"] = keys.shared_expert_intermediate_size;
  if (!has_linear(keys)) return;
  json["linear_conv_kernel_dim"] = keys.linear_conv_kernel_dim;
  json["linear_key_head_dim"] = keys.linear_key_head_dim;
  json["linear_num_key_heads"] = keys.linear_num_key_heads;
  json["linear_num_value_heads"] = keys.linear_num_value_heads;
  json["linear_value_head_dim"] = keys.linear_value_head_dim;
}

}  // namespace

const HfFamily kHfMiniMax{
    .model_type = "minimax",
    .architecture = "MiniMaxForCausalLM",
    .states = states_minimax,
    .read = read_minimax,
    .write = write_minimax,
    .names = {.experts = &kMixtralExperts, .mixers = kMiniMaxMixers, .buffers = kMiniMaxBuffers}};
// Files may hold layers that predict more tokens at a time ("mtp."), which no program here runs.
const HfFamily kHfQwen3Next{
    .model_type = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .states = states_qwen3_next,
    .read = read_qwen3_next,
    .write = write_qwen3_next,
    .names = {.experts = &kQwen3MoeExperts, .mixers = kQwen3NextMixers, .passed = "mtp."}};

}  // namespace ashlar::models
