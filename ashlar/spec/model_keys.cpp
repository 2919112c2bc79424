#include "ashlar/spec/model_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

// Block types that have a name of their own.
struct Named {
  std::string_view name;
  LayerType type;
};
constexpr Named kNamed[] = {
    {"hybrid", LayerType::kHybrid},
    {"hybrid_sliding", LayerType::kHybridSliding},
    {"full_attention", LayerType::kFullAttention},
    {"sliding_attention", LayerType::kSlidingAttention},
    {"linear_attention", LayerType::kLinearAttention},
};

constexpr std::string_view kAlternate = "alternate";

template <typename... Specs>
std::vector<std::string_view> kinds_of(const std::variant<Specs...>*) {
  return {Specs::kKind...};
}

std::string combined_name(const LayerType& type) {
  return fmt::format("{}{}+{}", type.mixer, type.sliding ? "_sliding" : "", type.feed_forward);
}

// Softmax mixers can be limited to a window; states cannot.
bool may_slide(std::string_view mixer) {
  return mixer != LinearSpec::kKind;
}

std::vector<LayerType> all_layer_types() {
  std::vector<LayerType> types;
  for (const std::string_view mixer : kinds_of(static_cast<const MixerSpec*>(nullptr)))
    for (const std::string_view other : kinds_of(static_cast<const FeedForwardSpec*>(nullptr)))
      for (const bool sliding : {false, true})
        if (!sliding || may_slide(mixer)) types.push_back({mixer, other, sliding});
  return types;
}

// --- keys to specs, and back: a pair of functions for each kind ---

// Heads, their rotated part and their window have the same keys for every softmax mixer.
template <typename Spec>
void give_heads(const ModelKeys& keys, bool sliding, Spec& spec) {
  spec.num_query_heads = keys.num_attention_heads;
  spec.num_key_heads = keys.num_key_value_heads;
  spec.head_dim = keys.head_dim;
  spec.rotary_factor = keys.partial_rotary_factor;
  spec.window = sliding ? keys.sliding_window : 0;
  spec.rope_theta = sliding ? keys.rope_theta_sliding : keys.rope_theta;
}
template <typename Spec>
void take_heads(const Spec& spec, ModelKeys& keys) {
  keys.num_attention_heads = spec.num_query_heads;
  keys.num_key_value_heads = spec.num_key_heads;
  keys.head_dim = spec.head_dim;
  keys.partial_rotary_factor = spec.rotary_factor;
}

CcaSpec cca_of(const ModelKeys& keys, bool sliding) {
  CcaSpec spec;
  give_heads(keys, sliding, spec);
  spec.qk_norm_eps = keys.qk_norm_eps;
  return spec;
}
void take(const CcaSpec& spec, ModelKeys& keys) {
  take_heads(spec, keys);
  keys.qk_norm_eps = spec.qk_norm_eps;
}

AttentionSpec attention_of(const ModelKeys& keys, bool sliding) {
  AttentionSpec spec;
  give_heads(keys, sliding, spec);
  spec.rope_scaling = keys.rope_scaling.of_its_type();
  spec.qk_norm = keys.qk_norm;
  spec.output_gate = keys.attention_output_gate;
  spec.bias = keys.attention_bias;
  return spec;
}
void take(const AttentionSpec& spec, ModelKeys& keys) {
  take_heads(spec, keys);
  keys.rope_scaling = spec.rope_scaling;
  keys.qk_norm = spec.qk_norm;
  keys.attention_output_gate = spec.output_gate;
  keys.attention_bias = spec.bias;
}

LinearSpec linear_of(const ModelKeys& keys, int64_t block) {
  LinearSpec spec = keys.linear;
  if (spec.kind == LinearKind::kLightning)
    spec.slope_factor = LinearSpec::slope_factor_of(block, keys.num_hidden_layers);
  return spec;
}
void take(const LinearSpec& spec, ModelKeys& keys) {
  keys.linear = spec;
  keys.linear.slope_factor = LinearSpec{}.slope_factor;
}

MlpSpec mlp_of(const ModelKeys& keys) {
  return {.width = keys.intermediate_size};
}
void take(const MlpSpec& spec, ModelKeys& keys) {
  keys.intermediate_size = spec.width;
}

RouterSpec router_of(const ModelKeys& keys) {
  if (keys.router == RouterKind::kMlp)
    return MlpRouterSpec{.width = keys.router_hidden_size, .skip_output = keys.skip_output};
  return keys.linear_router;
}
void take(const MlpRouterSpec& spec, ModelKeys& keys) {
  keys.router_hidden_size = spec.width;
  keys.skip_output = spec.skip_output;
}
void take(const LinearRouterSpec& spec, ModelKeys& keys) {
  keys.linear_router = spec;
}

MoeSpec moe_of(const ModelKeys& keys) {
  return {.num_experts = keys.num_experts,
          .width = keys.moe_intermediate_size,
          .router = router_of(keys),
          .shared = {keys.shared_expert_intermediate_size, keys.shared_expert_gate}};
}
void take(const MoeSpec& spec, ModelKeys& keys) {
  keys.num_experts = spec.num_experts;
  keys.moe_intermediate_size = spec.width;
  keys.router = RouterKind(spec.router.index());
  std::visit([&](const auto& router) { take(router, keys); }, spec.router);
  keys.shared_expert_intermediate_size = spec.shared.width;
  keys.shared_expert_gate = spec.shared.gate;
}

MixerSpec mixer_of(const ModelKeys& keys, const LayerType& type, int64_t block) {
  if (type.mixer == CcaSpec::kKind) return cca_of(keys, type.sliding);
  if (type.mixer == AttentionSpec::kKind) return attention_of(keys, type.sliding);
  if (type.mixer == LinearSpec::kKind) return linear_of(keys, block);
  ASHLAR_ASSERT(false && "a mixer that keys do not state");
}

FeedForwardSpec feed_forward_of(const ModelKeys& keys, const LayerType& type) {
  if (type.feed_forward == MoeSpec::kKind) return moe_of(keys);
  if (type.feed_forward == MlpSpec::kKind) return mlp_of(keys);
  ASHLAR_ASSERT(false && "a feed-forward that keys do not state");
}

// The part of a softmax mixer that has separate keys for blocks with a window.
struct Reach {
  int64_t window;
  double rope_theta;
  friend bool operator==(const Reach&, const Reach&) = default;
};
template <typename Spec>
std::optional<Reach> reach_of(const Spec& spec) {
  return Reach{spec.window, spec.rope_theta};
}
std::optional<Reach> reach_of(const LinearSpec&) {
  return std::nullopt;
}

std::optional<Reach> reach_of(const BlockSpec& block) {
  return std::visit([](const auto& spec) -> std::optional<Reach> { return reach_of(spec); },
                    block.mixer);
}

// The keys that the first block of each kind states.
ModelKeys keys_of_kinds(const ModelSpec& model) {
  ModelKeys keys;
  keys.vocab_size = model.vocab_size;
  keys.hidden_size = model.hidden_size;
  keys.num_hidden_layers = model.num_blocks();
  keys.rms_norm_eps = model.norm_eps;
  keys.max_position_embeddings = model.max_positions;
  keys.pad_token_id = model.pad_token_id;
  keys.bos_token_id = model.bos_token_id;
  keys.eos_token_ids = model.eos_token_ids;
  keys.head_fp32 = model.head_fp32;
  keys.tie_word_embeddings = model.tied_head;
  keys.zero_centered_norm = model.zero_centered_norm;
  keys.residual = model.blocks.at(0).residual;
  // The first block without a window decides the keys of such blocks, the first other one those of
  // sliding blocks.
  const Reach *whole = nullptr, *sliding = nullptr;
  std::vector<std::optional<Reach>> reaches;
  for (const BlockSpec& block : model.blocks) reaches.push_back(reach_of(block));
  for (const auto& reach : reaches)
    if (reach && reach->window == 0 && !whole) whole = &*reach;
  for (const auto& reach : reaches)
    if (reach && !sliding && (!whole || *reach != *whole)) sliding = &*reach;
  if (whole) keys.rope_theta = whole->rope_theta;
  if (sliding) keys.rope_theta_sliding = sliding->rope_theta, keys.sliding_window = sliding->window;
  // Backwards, so that the first block of a kind decides its keys.
  keys.layer_types.resize(model.blocks.size());
  for (size_t l = model.blocks.size(); l-- > 0;) {
    const BlockSpec& block = model.blocks[l];
    LayerType& type = keys.layer_types[l];
    type.sliding = reaches[l] && (!whole || *reaches[l] != *whole);
    std::visit([&](const auto& spec) { type.mixer = spec.kKind, take(spec, keys); }, block.mixer);
    std::visit([&](const auto& spec) { type.feed_forward = spec.kKind, take(spec, keys); },
               block.feed_forward);
    (type.mixer == LinearSpec::kKind ? keys.linear_attn : keys.full_attn) = block.mixer_factors;
    keys.mlp = block.feed_forward_factors;
  }
  if (keys.num_attention_heads == 0) {  // no block has them; recipes state them all the same
    keys.num_attention_heads = keys.num_key_value_heads = keys.linear.num_key_heads;
    keys.head_dim = keys.linear.key_head_dim;
  }
  return keys;
}

// kConfig unless blocks have in common what they need to run one after another.
void require_common(const ModelSpec& model) {
  const BlockSpec& first = model.blocks.at(0);
  std::optional<int64_t> width;  // of the state that goes from one mlp router to the next
  for (size_t l = 0; l < model.blocks.size(); ++l) {
    const BlockSpec& block = model.blocks[l];
    ASHLAR_REQUIRE(block.residual == first.residual, kConfig,
                   "residual is {} in block {} but {} in block 0; expected one for all blocks",
                   kResidualNames[size_t(block.residual)], l,
                   kResidualNames[size_t(first.residual)]);
    const auto* moe = std::get_if<MoeSpec>(&block.feed_forward);
    const auto* router = moe ? std::get_if<MlpRouterSpec>(&moe->router) : nullptr;
    if (!router) continue;
    ASHLAR_REQUIRE(router->width == width.value_or(router->width), kConfig,
                   "router_hidden_size is {} in block {} but {} before it; expected one for all "
                   "blocks, for a router's state goes on to the next",
                   router->width, l, *width);
    width = router->width;
  }
}

ResidualFactors mixer_factors_of(const ModelKeys& keys, const LayerType& type) {
  return type.mixer == LinearSpec::kKind ? keys.linear_attn : keys.full_attn;
}

BlockSpec block_of(const ModelKeys& keys, const LayerType& type, int64_t block) {
  BlockSpec spec{mixer_of(keys, type, block), feed_forward_of(keys, type), keys.residual};
  if (keys.residual == Residual::kNormed) {
    spec.mixer_factors = mixer_factors_of(keys, type);
    spec.feed_forward_factors = keys.mlp;
  }
  return spec;
}

}  // namespace

std::string name_of(const LayerType& type) {
  for (const Named& named : kNamed)
    if (named.type == type) return std::string(named.name);
  return combined_name(type);
}

std::string layer_types_text() {
  std::string text;
  for (const Named& named : kNamed) text += fmt::format("{}, ", named.name);
  std::vector<std::string> mixers;
  for (const std::string_view kind : kinds_of(static_cast<const MixerSpec*>(nullptr)))
    for (const char* reach : {"", "_sliding"})
      if (*reach == 0 || may_slide(kind)) mixers.push_back(fmt::format("{}{}", kind, reach));
  return text +
         fmt::format("{}, or MIXER+FEED_FORWARD of {} and {}", kAlternate, fmt::join(mixers, ", "),
                     fmt::join(kinds_of(static_cast<const FeedForwardSpec*>(nullptr)), ", "));
}

std::vector<LayerType> expand_layer_pattern(std::string_view name, int64_t num_layers) {
  std::vector<LayerType> types;
  if (name == kAlternate)
    for (int64_t l = 0; l < num_layers; ++l)
      types.push_back(l % 2 == 0 ? LayerType::kHybridSliding : LayerType::kHybrid);
  for (const Named& named : kNamed)
    if (named.name == name) types.assign(size_t(num_layers), named.type);
  for (const LayerType& type : all_layer_types())
    if (combined_name(type) == name) types.assign(size_t(num_layers), type);
  return types;
}

bool ModelKeys::has_mixer(std::string_view kind) const {
  return std::any_of(layer_types.begin(), layer_types.end(),
                     [&](const LayerType& type) { return type.mixer == kind; });
}

bool ModelKeys::has_feed_forward(std::string_view kind) const {
  return std::any_of(layer_types.begin(), layer_types.end(),
                     [&](const LayerType& type) { return type.feed_forward == kind; });
}

ModelSpec model_of(const ModelKeys& keys) {
  ModelSpec model;
  model.vocab_size = keys.vocab_size;
  model.hidden_size = keys.hidden_size;
  model.max_positions = keys.max_position_embeddings;
  model.norm_eps = keys.rms_norm_eps;
  model.head_fp32 = keys.head_fp32;
  model.tied_head = keys.tie_word_embeddings;
  model.pad_token_id = keys.pad_token_id;
  model.bos_token_id = keys.bos_token_id;
  model.eos_token_ids = keys.eos_token_ids;
  model.zero_centered_norm = keys.zero_centered_norm;
  for (const LayerType& type : keys.layer_types)
    model.blocks.push_back(block_of(keys, type, model.num_blocks()));
  return model;
}

LayerType type_of(const BlockSpec& block) {
  LayerType type;
  std::visit([&](const auto& spec) { type.mixer = spec.kKind; }, block.mixer);
  std::visit([&](const auto& spec) { type.feed_forward = spec.kKind; }, block.feed_forward);
  const auto reach = reach_of(block);
  type.sliding = reach && reach->window > 0;
  return type;
}

ModelKeys keys_of(const ModelSpec& model, const std::string& place) {
  const ModelKeys keys = keys_of_kinds(model);
  const ModelSpec again = model_of(keys);
  for (size_t l = 0; l < model.blocks.size(); ++l)
    ASHLAR_REQUIRE(again.blocks[l] == model.blocks[l], kConfig,
                   "{}{}block {} differs from the others in what a recipe states once for all "
                   "blocks: all but the kinds of mixer and feed-forward, one window and its RoPE "
                   "base",
                   place, place.empty() ? "" : ": ", l);
  return keys;
}

// validate.cpp has the rules of keys, which their messages name.  Keys can state any single block,
// so each block is judged as a model of equal ones.
void validate(const ModelSpec& model) {
  ModelSpec alike = model;
  const BlockSpec* before = nullptr;
  for (const BlockSpec& block : model.blocks) {
    if (before && *before == block) continue;
    before = &block;
    alike.blocks = {block};
    ModelKeys keys = keys_of_kinds(alike);
    keys.num_hidden_layers = model.num_blocks();
    keys.layer_types.assign(model.blocks.size(), keys.layer_types[0]);
    validate(keys, "");
  }
  require_common(model);
}

}  // namespace ashlar
