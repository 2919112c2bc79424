// A model as recipes spell it: sizes, and the choices that change its arithmetic, once for all of
// its blocks; layer_types names the kind of each block.  Keys have their native Hugging Face name
// where one exists.  Plain values; validate() alone judges them.  The rest of the program reads the
// ModelSpec that model_of makes of them.
//
// Source  ZAYA1, arXiv 2511.17127 and 2605.05365, the released configurations; Llama 3, arXiv
//         2407.21783; Mixtral, arXiv 2401.04088; Qwen3, arXiv 2505.09388 (docs/hugging-face.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/spec/model_spec.h"

namespace ashlar {

// A kind of block: the kinds of its mixer and of its feed-forward (their kKind), and whether its
// mixer sees only a window.
struct LayerType {
  std::string_view mixer, feed_forward;
  bool sliding = false;
  static const LayerType kHybrid, kHybridSliding;            // ZAYA1's
  static const LayerType kFullAttention, kSlidingAttention;  // dense models'
  static const LayerType kLinearAttention;
  friend bool operator==(const LayerType&, const LayerType&) = default;
};
// The kinds of RouterSpec, in their order there.
enum class RouterKind : uint8_t { kMlp, kLinear };
inline constexpr std::array<const char*, 2> kRouterNames{MlpRouterSpec::kKind,
                                                         LinearRouterSpec::kKind};
inline constexpr LayerType LayerType::kHybrid{CcaSpec::kKind, MoeSpec::kKind};
inline constexpr LayerType LayerType::kHybridSliding{CcaSpec::kKind, MoeSpec::kKind, true};
inline constexpr LayerType LayerType::kFullAttention{AttentionSpec::kKind, MlpSpec::kKind};
inline constexpr LayerType LayerType::kSlidingAttention{AttentionSpec::kKind, MlpSpec::kKind, true};
inline constexpr LayerType LayerType::kLinearAttention{LinearSpec::kKind, MlpSpec::kKind};
// "cca+mlp", "attention_sliding+moe", ...; known combinations have a name of their own: hybrid,
// hybrid_sliding, full_attention, sliding_attention, linear_attention.
std::string name_of(const LayerType& type);
// Every name that expand_layer_pattern accepts: "hybrid, ..., alternate, or MIXER+FEED_FORWARD of
// cca, cca_sliding and moe".
std::string layer_types_text();
// The types of `num_layers` blocks, all of one name, or in turn hybrid_sliding and hybrid for
// "alternate".  Empty if there is no such name.
std::vector<LayerType> expand_layer_pattern(std::string_view name, int64_t num_layers);

struct ModelKeys {
  int64_t vocab_size = 0;             // V
  int64_t hidden_size = 0;            // H
  int64_t num_hidden_layers = 0;      // L, blocks of one mixer and one feed-forward
  int64_t num_attention_heads = 0;    // N
  int64_t num_key_value_heads = 0;    // K
  int64_t head_dim = 0;               // D
  int64_t num_experts = 0;            // E; an mlp router has one more class (skip)
  int64_t moe_intermediate_size = 0;  // F
  RouterKind router = RouterKind::kMlp;
  int64_t router_hidden_size = 0;               // R of an mlp router
  LinearRouterSpec linear_router{};             // of a linear router
  int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert
  bool shared_expert_gate = false;
  int64_t intermediate_size = 0;  // F of an mlp
  double rms_norm_eps = 1e-5;
  double partial_rotary_factor = 0.5;
  double rope_theta = 1e4;             // blocks without a window
  double rope_theta_sliding = 1e4;     // sliding blocks
  int64_t sliding_window = 0;          // tokens, the query's own included; 0: none
  std::vector<LayerType> layer_types;  // one per block
  Residual residual = Residual::kScaled;
  QkNorm qk_norm = QkNorm::kNone;  // of attention; cca has its own
  RopeScalingSpec rope_scaling{};  // of attention
  bool attention_output_gate = false;
  AttentionBias attention_bias = AttentionBias::kNone;
  LinearSpec linear{};  // of linear mixers; their slope_factor follows from the block's number
  // For residual normed.
  ResidualFactors linear_attn{}, full_attn{}, mlp{};
  bool zero_centered_norm = false;
  bool tie_word_embeddings = true;
  int64_t max_position_embeddings = 32768;
  int64_t pad_token_id = 0, bos_token_id = 2;  // -1: none
  std::vector<int64_t> eos_token_ids = {1};    // each ends a text; empty: none does

  SkipOutput skip_output = SkipOutput::kZero;
  bool head_fp32 = false;      // the head product in fp32 even when compute is bf16
  double qk_norm_eps = 1e-12;  // guard under the root of CCA's QK norm; 0 in the golden vector

  int64_t q_dim() const { return num_attention_heads * head_dim; }
  int64_t kv_dim() const { return num_key_value_heads * head_dim; }
  int64_t rotary_dim() const { return int64_t(double(head_dim) * partial_rotary_factor); }
  bool has_mixer(std::string_view kind) const;
  bool has_feed_forward(std::string_view kind) const;
  friend bool operator==(const ModelKeys&, const ModelKeys&) = default;
};

ModelSpec model_of(const ModelKeys& keys);
// The keys with which a recipe states the model.  kConfig, naming the first block that they cannot
// state, where blocks differ in more than keys can say; `place` names the model in the message.
ModelKeys keys_of(const ModelSpec& model, const std::string& place = "");

// The type of a block; windows of any width are alike.
LayerType type_of(const BlockSpec& block);

// kConfig with the key, its value and the nearest legal values.  Names of keys in messages begin
// with `section`: "model." for recipes, "" for config.json.
void validate(const ModelKeys& keys, const std::string& section);

}  // namespace ashlar
