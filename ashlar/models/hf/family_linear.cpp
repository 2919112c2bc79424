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

bool has_linear(const ModelSpec& model) {
  return first_block_with<LinearSpec>(model) < model.num_blocks();
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

// The tokens of a block, over which transformers computes Lightning's decays once.
constexpr int64_t kBlockSize = 256;

// The slope at which a head forgets per token.
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

// Reads layer_types; without them, block l is linear if linear(l).
template <typename Linear>
void read_mixers(const HfFields& fields, Linear linear, ModelSpec& model) {
  const int64_t L = model.num_blocks();
  if (!fields.has("layer_types")) {
    for (int64_t l = 0; l < L; ++l)
      if (linear(l)) model.blocks[size_t(l)].mixer = LinearSpec{};
    return;
  }
  const Json& list = fields.at("layer_types");
  const std::string expected = fmt::format(
      "a list of num_hidden_layers = {} names, each \"full_attention\" or \"linear_attention\"", L);
  if (!list.is_array() || int64_t(list.size()) != L) fields.fail("layer_types", expected);
  for (size_t l = 0; l < list.size(); ++l) {
    if (list[l] != "full_attention" && list[l] != "linear_attention")
      fields.fail("layer_types", expected);
    if (list[l] == "linear_attention") model.blocks[l].mixer = LinearSpec{};
  }
}

// Replaces the sizes of block 0, which may be linear, by sizes that files show in tensors of one
// native tensor.
void set_sizes(HfConfig& config, const std::string& value_heads, const std::string& value_dim) {
  const HfBlocks blocks(config.model);
  const auto key = [&](const char* name) { return config.key_of(name); };
  const auto tensor = [](int64_t block, const char* name) {
    return fmt::format("model.layers.{}.self_attn.{}.weight", block, name);
  };
  config.sizes.clear();
  if (const AttentionSpec* attention = blocks.attention.any()) {
    const int64_t l = first_block_with<AttentionSpec>(config.model);
    config.sizes.push_back({tensor(l, "k_proj"), 0,
                            key("num_key_value_heads") + " * " + key("head_dim"),
                            attention->kv_dim()});
    config.sizes.push_back({tensor(l, "o_proj"), 1,
                            key("num_attention_heads") + " * " + key("head_dim"),
                            attention->q_dim()});
  }
  if (blocks.linear)
    config.sizes.push_back({tensor(first_block_with<LinearSpec>(config.model), "o_proj"), 1,
                            value_heads + " * " + value_dim, blocks.linear->value_dim()});
}

// Lightning attention of as many heads of the same size as softmax attention has.
void make_lightning(const AttentionSpec& attention, ModelSpec& model) {
  LinearSpec lightning{.kind = LinearKind::kLightning};
  lightning.num_key_heads = lightning.num_value_heads = attention.num_query_heads;
  lightning.key_head_dim = lightning.value_head_dim = attention.head_dim;
  for (int64_t l = 0; l < model.num_blocks(); ++l)
    if (auto* linear = part_in<LinearSpec>(model.blocks[size_t(l)])) {
      *linear = lightning;
      linear->slope_factor = LinearSpec::slope_factor_of(l, model.num_blocks());
    }
}

// Sets Residual::kNormed, with the factors of each kind of branch.
void read_factors(const HfFields& fields, ModelSpec& model) {
  const auto factors = [&](const std::string& of) {
    return ResidualFactors{fields.positive_or(of + "_alpha_factor", 1.0),
                           fields.positive_or(of + "_beta_factor", 1.0)};
  };
  const ResidualFactors softmax = factors("full_attn"), mlp = factors("mlp");
  const ResidualFactors linear = has_linear(model) ? factors("linear_attn") : ResidualFactors{};
  for (BlockSpec& block : model.blocks) {
    block.residual = Residual::kNormed;
    block.mixer_factors = has<LinearSpec>(block) ? linear : softmax;
    block.feed_forward_factors = mlp;
  }
}

HfConfig read_minimax(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kMiniMaxDefaults);
  ModelSpec& model = config.model;
  const auto attention = std::get<AttentionSpec>(model.blocks[0].mixer);
  for (BlockSpec& block : model.blocks) block.feed_forward = MoeSpec{};
  read_mixers(
      fields, [](int64_t l) { return l % 2 == 1; }, model);
  read_factors(fields, model);
  make_lightning(attention, model);
  set_sizes(config, config.key_of("num_attention_heads"), config.key_of("head_dim"));
  read_mixture(fields, "intermediate_size", 2, config);
  if (!fields.has("sliding_window")) return config;
  const int64_t window = fields.integer("sliding_window", 1, kMaxPositions);
  change_each<AttentionSpec>(model, [&](AttentionSpec& each) { each.window = window; });
  return config;
}

void read_delta_net(const HfFields& fields, HfConfig& config) {
  SizeReader size{fields, config.keys};
  const auto read = [&](const char* key, int64_t most) { return size.scalar(key, key, most); };
  LinearSpec delta{.kind = LinearKind::kGatedDelta};
  delta.num_key_heads = read("linear_num_key_heads", kMaxHeads);
  delta.num_value_heads = read("linear_num_value_heads", kMaxHeads);
  delta.key_head_dim = read("linear_key_head_dim", kMaxHeads);
  delta.value_head_dim = read("linear_value_head_dim", kMaxHeads);
  constexpr int64_t kTaps = 4;
  delta.conv_taps = fields.integer_or("linear_conv_kernel_dim", kTaps, 1, kMaxHeads);
  change_each<LinearSpec>(config.model, [&](LinearSpec& each) { each = delta; });
}

void read_shared_expert(const HfFields& fields, HfConfig& config) {
  SizeReader size{fields, config.keys};
  const char* key = "shared_expert_intermediate_size";
  const SharedExpertSpec shared{.width = size.scalar(key, key, kMaxSize), .gate = true};
  change_each<MoeSpec>(config.model, [&](MoeSpec& moe) { moe.shared = shared; });
  config.sizes.push_back({fmt::format("model.layers.{}.mlp.shared_expert.down_proj.weight",
                                      first_block_with<MoeSpec>(config.model)),
                          1, config.key_of(key), shared.width});
}

HfConfig read_qwen3_next(const HfFields& fields) {
  HfConfig config = read_attention_config(fields, kQwen3NextDefaults);
  ModelSpec& model = config.model;
  model.zero_centered_norm = true;
  change_each<AttentionSpec>(model, [](AttentionSpec& each) {
    each.qk_norm = QkNorm::kRms;
    each.output_gate = true;
  });
  const int64_t interval = fields.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  read_mixers(
      fields, [&](int64_t l) { return (l + 1) % interval != 0; }, model);
  if (has_linear(model)) read_delta_net(fields, config);
  const auto key = [&](const char* name) { return has_linear(model) ? config.key_of(name) : ""; };
  set_sizes(config, key("linear_num_value_heads"), key("linear_value_head_dim"));
  read_sparse_blocks(fields, "not supported in this family", model);
  read_mixture(fields, "moe_intermediate_size", 10, config);
  read_shared_expert(fields, config);
  read_renormalize(fields, true, model);
  read_dense_blocks(fields, config);
  return config;
}

// --- writing ---

bool is_lightning(const LinearSpec& linear, const AttentionSpec& attention) {
  LinearSpec expected{.kind = LinearKind::kLightning};
  expected.num_key_heads = expected.num_value_heads = attention.num_query_heads;
  expected.key_head_dim = expected.value_head_dim = attention.head_dim;
  expected.slope_factor = linear.slope_factor;  // HfBlocks::odd judges it
  return linear == expected;
}

bool states_minimax(const ModelSpec& model) {
  const HfBlocks blocks(model);
  return states_attention_config(model, blocks, kMiniMax) && blocks.attention.one_reach() &&
         states_renormalized_router(blocks.moe) && blocks.moe->shared.width == 0 && !blocks.mlp &&
         (!blocks.linear || is_lightning(*blocks.linear, *blocks.attention.any()));
}

bool states_qwen3_next(const ModelSpec& model) {
  const HfBlocks blocks(model);
  const LinearSpec* linear = blocks.linear;
  const bool delta_net = !linear || (linear->kind == LinearKind::kGatedDelta &&
                                     linear->map == LinearMap::kIdentity && linear->conv_taps > 0);
  return states_attention_config(model, blocks, kQwen3Next) && !blocks.attention.sliding &&
         states_router(blocks.moe) && blocks.moe->shared.width > 0 && blocks.moe->shared.gate &&
         delta_net;
}

void write_layer_types(const ModelSpec& model, Json& json) {
  json["layer_types"] = Json::array();
  for (const BlockSpec& block : model.blocks)
    json["layer_types"].push_back(has<LinearSpec>(block) ? "linear_attention" : "full_attention");
}

void write_minimax(const ModelSpec& model, HfLayout, Json& json) {
  const HfBlocks blocks(model);
  write_mixture(model, blocks, json);
  write_layer_types(model, json);
  json["block_size"] = kBlockSize;
  const auto write = [&](const std::string& of, const std::optional<ResidualFactors>& factors) {
    const ResidualFactors stated = factors.value_or(ResidualFactors{});
    json[of + "_alpha_factor"] = stated.alpha;
    json[of + "_beta_factor"] = stated.beta;
  };
  write("full_attn", blocks.softmax_factors);
  write("linear_attn", blocks.linear_factors);
  write("mlp", blocks.feed_forward_factors);
  write_mixtral_blocks(blocks, json);
}

void write_qwen3_next(const ModelSpec& model, HfLayout, Json& json) {
  const HfBlocks blocks(model);
  write_mixture(model, blocks, json);
  write_bias(blocks, json);
  write_sparse_blocks(model, blocks, json);
  write_layer_types(model, json);
  json["partial_rotary_factor"] = blocks.attention.any()->rotary_factor;
  json["rope_parameters"]["partial_rotary_factor"] = blocks.attention.any()->rotary_factor;
  json["shared_expert_intermediate_size"] = blocks.moe->shared.width;
  if (!blocks.linear) return;
  json["linear_conv_kernel_dim"] = blocks.linear->conv_taps;
  json["linear_key_head_dim"] = blocks.linear->key_head_dim;
  json["linear_num_key_heads"] = blocks.linear->num_key_heads;
  json["linear_num_value_heads"] = blocks.linear->num_value_heads;
  json["linear_value_head_dim"] = blocks.linear->value_head_dim;
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
