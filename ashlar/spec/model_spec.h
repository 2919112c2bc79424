// A model block by block, of whatever family: the plain values that its layers are made from.  A
// recipe spells them in keys (model_keys.h), a config.json in a family's own (models/hf/family.h),
// and the model.json of every saved step holds them whole.
//
// A kind of mixer or feed-forward is a struct with a name (kKind) and a list of its members, from
// which model.json is written and read.  It is an alternative of MixerSpec or FeedForwardSpec; the
// rest of this module needs nothing else of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ashlar {

// The most channels of a head, in any mixer: the limit of the kernels.
inline constexpr int64_t kMaxHeadDim = 256;

// The output of a router's skip class: nothing, or p * m.
enum class SkipOutput : uint8_t { kZero, kIdentity };
inline constexpr std::array<const char*, 2> kSkipOutputNames{"zero", "identity"};
// Whether each head's queries and keys are normed, by RMS with a weight.
enum class QkNorm : uint8_t { kNone, kRms };
inline constexpr std::array<const char*, 2> kQkNormNames{"none", "rms"};
// Which projections of attention have a bias: none; those of queries, keys, values and the gate; or
// these and the output projection.
enum class AttentionBias : uint8_t { kNone, kQkv, kQkvo };
inline constexpr std::array<const char*, 3> kAttentionBiasNames{"none", "qkv", "qkvo"};
// How a branch joins the stream.  kScaled (ZAYA1): learned vectors scale and shift both before they
// are added, and also the embedding where the first block does so.  kPlain: they are added.
// kNormed (MiniMax): the branch's normed input takes the stream's place, and both have factors.
enum class Residual : uint8_t { kScaled, kPlain, kNormed };
inline constexpr std::array<const char*, 3> kResidualNames{"scaled", "plain", "normed"};

// For Residual::kNormed: x = alpha a + beta f(a), where a is the normed input of the branch f.
struct ResidualFactors {
  double alpha = 1.0, beta = 1.0;
  friend bool operator==(const ResidualFactors&, const ResidualFactors&) = default;
};

// How RoPE is scaled for contexts longer than the original training's (formulas: kernels/rope.h).
enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };
inline constexpr std::array<const char*, 5> kRopeTypeNames{"default", "linear", "dynamic", "yarn",
                                                           "llama3"};
struct RopeScalingSpec {
  RopeType type = RopeType::kDefault;
  double factor = 1.0;
  int64_t original_positions = 0;                        // of dynamic, yarn and llama3
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // of llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // of yarn
  double attention_factor = 0.0;                         // of yarn; 0: derived from factor
  bool truncate = true;                                  // of yarn

  // The same with defaults where its type has no use for a member, so that equal scalings compare
  // equal.
  RopeScalingSpec of_its_type() const;
  static constexpr bool has_original_positions(RopeType type) { return type >= RopeType::kDynamic; }
  friend bool operator==(const RopeScalingSpec&, const RopeScalingSpec&) = default;
};

// Rotary position embedding of a mixer.  rotary_dim: channels of a head that rotate; 0: none.
struct RopeSpec {
  int64_t rotary_dim = 0;
  double theta = 1e4;
  RopeScalingSpec scaling{};
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// Compressed Convolutional Attention (nn/cca_attention.h).
struct CcaSpec {
  static constexpr const char* kKind = "cca";

  int64_t num_query_heads = 0;  // N
  int64_t num_key_heads = 0;    // K
  int64_t head_dim = 0;         // D
  double rotary_factor = 0.5;   // share of a head's channels that RoPE rotates
  int64_t window = 0;           // tokens that a query sees, its own included; 0: all before it
  double rope_theta = 1e4;
  double qk_norm_eps = 1e-12;  // guard under the root of its QK norm

  int64_t q_dim() const { return num_query_heads * head_dim; }
  int64_t kv_dim() const { return num_key_heads * head_dim; }
  int64_t conv_channels() const { return q_dim() + kv_dim(); }  // C
  RopeSpec rope() const { return {int64_t(double(head_dim) * rotary_factor), rope_theta, {}}; }
  // Tokens before a token that it reads, beside keys and states: two convolutions have two taps.
  int64_t halo_reach() const { return 2; }

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("num_query_heads", s.num_query_heads, 1);
    visit("num_key_heads", s.num_key_heads, 1);
    visit("head_dim", s.head_dim, 1);
    visit("rotary_factor", s.rotary_factor, 0);
    visit("window", s.window, 0);
    visit("rope_theta", s.rope_theta, 0);
    visit("qk_norm_eps", s.qk_norm_eps, 0);
  }
  friend bool operator==(const CcaSpec&, const CcaSpec&) = default;
};

// Softmax attention, with as many key heads as query heads or fewer (nn/attention.h).
struct AttentionSpec {
  static constexpr const char* kKind = "attention";

  int64_t num_query_heads = 0;  // N
  int64_t num_key_heads = 0;    // K
  int64_t head_dim = 0;         // D
  double rotary_factor = 1.0;   // share of a head's channels that RoPE rotates
  int64_t window = 0;           // tokens that a query sees, its own included; 0: all before it
  double rope_theta = 1e4;
  RopeScalingSpec rope_scaling{};
  QkNorm qk_norm = QkNorm::kNone;
  bool output_gate = false;  // each output channel is weighted by the sigmoid of a product of a
  AttentionBias bias = AttentionBias::kNone;

  int64_t q_dim() const { return num_query_heads * head_dim; }
  int64_t kv_dim() const { return num_key_heads * head_dim; }
  RopeSpec rope() const {
    return {int64_t(double(head_dim) * rotary_factor), rope_theta, rope_scaling};
  }
  int64_t halo_reach() const { return 0; }

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("num_query_heads", s.num_query_heads, 1);
    visit("num_key_heads", s.num_key_heads, 1);
    visit("head_dim", s.head_dim, 1);
    visit("rotary_factor", s.rotary_factor, 0);
    visit("window", s.window, 0);
    visit("rope_theta", s.rope_theta, 0);
    visit("rope_factor", s.rope_scaling.factor, 1);
    visit("rope_low_freq_factor", s.rope_scaling.low_freq_factor, 0);
    visit("rope_high_freq_factor", s.rope_scaling.high_freq_factor, 0);
    visit("rope_original_positions", s.rope_scaling.original_positions, 0);
    visit_rope_type(s.rope_scaling, visit);
    visit("qk_norm", s.qk_norm, kQkNormNames);
    visit("output_gate", s.output_gate, false);
    visit("bias", s.bias, kAttentionBiasNames, AttentionBias::kNone);
  }
  // Earlier versions had llama3 alone, and recognized it by its original positions.
  template <typename Scaling, typename Visit>
  static void visit_rope_type(Scaling& s, Visit visit) {
    visit("rope_type", s.type, kRopeTypeNames,
          s.original_positions > 0 ? RopeType::kLlama3 : RopeType::kDefault);
    if (s.type != RopeType::kYarn) return;
    visit("rope_beta_fast", s.beta_fast, 0);
    visit("rope_beta_slow", s.beta_slow, 0);
    visit("rope_attention_factor", s.attention_factor, 0);
    visit("rope_truncate", s.truncate);
  }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

// How the state of a linear mixer changes from token to token (docs/linear-attention.md): without
// decay; with a fixed decay per head (Lightning, Retention); with a gate per token and key channel
// (GLA); by the delta rule with a gate per token (gated DeltaNet).
enum class LinearKind : uint8_t { kBasic, kLightning, kRetention, kGla, kGatedDelta };
inline constexpr std::array<const char*, 5> kLinearKindNames{"basic", "lightning", "retention",
                                                             "gla", "gated_delta"};
// The map of a linear mixer's queries and keys; kElu is elu(x) + 1.
enum class LinearMap : uint8_t { kIdentity, kSilu, kRelu, kElu };
inline constexpr std::array<const char*, 4> kLinearMapNames{"identity", "silu", "relu", "elu"};

// Linear attention: each value head has one state, which holds the past (nn/linear_attention.h).
struct LinearSpec {
  static constexpr const char* kKind = "linear";
  static constexpr int64_t kGateRank = 16;  // rank of GLA's gates

  LinearKind kind = LinearKind::kBasic;
  int64_t num_key_heads = 0;    // K, heads of queries and keys
  int64_t num_value_heads = 0;  // H, a multiple of K; one state each
  int64_t key_head_dim = 0;     // dk
  int64_t value_head_dim = 0;   // dv
  int64_t conv_taps = 0;        // of the convolution on q, k and v; 0: none
  LinearMap map = LinearMap::kIdentity;
  bool causal = true;         // false: every token reads its whole document
  double slope_factor = 1.0;  // factor on Lightning's slopes, which falls from block to block

  int64_t key_dim() const { return num_key_heads * key_head_dim; }
  int64_t value_dim() const { return num_value_heads * value_head_dim; }
  int64_t conv_channels() const { return 2 * key_dim() + value_dim(); }
  RopeSpec rope() const { return {}; }
  int64_t halo_reach() const { return conv_taps > 0 ? conv_taps - 1 : 0; }
  // The factor of a block of Lightning: it falls with depth, so that the last block hardly decays.
  // Source  MiniMax-01's release; kGuard keeps a model of one block from dividing by 0.
  static double slope_factor_of(int64_t block, int64_t num_blocks) {
    constexpr double kGuard = 1e-5;
    return 1.0 - double(block) / (double(num_blocks) - 1.0 + kGuard) + kGuard;
  }

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("recurrence", s.kind, kLinearKindNames);
    visit("num_key_heads", s.num_key_heads, 1);
    visit("num_value_heads", s.num_value_heads, 1);
    visit("key_head_dim", s.key_head_dim, 1);
    visit("value_head_dim", s.value_head_dim, 1);
    visit("conv_taps", s.conv_taps, 0);
    visit("feature_map", s.map, kLinearMapNames);
    visit("causal", s.causal, true);
    visit("slope_factor", s.slope_factor, 0);
  }
  friend bool operator==(const LinearSpec&, const LinearSpec&) = default;
};

// ZAYA1's router: an MLP with a state that flows from block to block, one expert per token, and a
// class for tokens that take none (nn/mlp_router.h).
struct MlpRouterSpec {
  static constexpr const char* kKind = "mlp";

  int64_t width = 0;  // R
  SkipOutput skip_output = SkipOutput::kZero;

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("router_width", s.width, 1);
    visit("skip_output", s.skip_output, kSkipOutputNames);
  }
  friend bool operator==(const MlpRouterSpec&, const MlpRouterSpec&) = default;
};

// One matrix, a softmax and the choice of several experts per token (nn/linear_router.h).
struct LinearRouterSpec {
  static constexpr const char* kKind = "linear";

  int64_t num_chosen = 1;   // k, experts per token
  bool pre_softmax = true;  // softmax over all experts before the choice; else over the chosen ones
  bool renormalize = true;  // weights of a token's experts add up to 1; always without pre_softmax
  double scale = 1.0;       // factor on those weights
  bool expert_bias = false;  // balancing biases, added to the score of choice only

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("num_chosen", s.num_chosen, 1);
    visit("pre_softmax", s.pre_softmax);
    visit("renormalize", s.renormalize);
    visit("scale", s.scale, 0);
    visit("expert_bias", s.expert_bias);
  }
  friend bool operator==(const LinearRouterSpec&, const LinearRouterSpec&) = default;
};

using RouterSpec = std::variant<MlpRouterSpec, LinearRouterSpec>;

// The expert that every token takes beside those it is routed to.
struct SharedExpertSpec {
  int64_t width = 0;  // 0: there is none
  bool gate = false;  // the sigmoid of the token's product with a vector weights its output

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("width", s.width, 1);
    visit("gate", s.gate);
  }
  friend bool operator==(const SharedExpertSpec&, const SharedExpertSpec&) = default;
};

// Mixture of experts: a router, experts, and perhaps a shared one (nn/moe.h).
struct MoeSpec {
  static constexpr const char* kKind = "moe";

  int64_t num_experts = 0;  // E
  int64_t width = 0;        // F, inside an expert
  RouterSpec router{};
  SharedExpertSpec shared{};

  int64_t experts_of_token() const {
    const auto* linear = std::get_if<LinearRouterSpec>(&router);
    return linear ? linear->num_chosen : 1;
  }

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("num_experts", s.num_experts, 1);
    visit("width", s.width, 1);
    visit("router", s.router);
    visit("shared_expert", s.shared);
  }
  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

// One SwiGLU for all tokens (nn/mlp.h).
struct MlpSpec {
  static constexpr const char* kKind = "mlp";

  int64_t width = 0;  // F

  template <typename Spec, typename Visit>
  static void visit_members(Spec& s, Visit visit) {
    visit("width", s.width, 1);
  }
  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

using MixerSpec = std::variant<CcaSpec, AttentionSpec, LinearSpec>;
using FeedForwardSpec = std::variant<MoeSpec, MlpSpec>;

struct BlockSpec {
  MixerSpec mixer;
  FeedForwardSpec feed_forward;
  Residual residual = Residual::kScaled;
  ResidualFactors mixer_factors{}, feed_forward_factors{};  // of Residual::kNormed

  // Whether the backward of its merges reads what was added.
  bool reads_summands() const { return residual == Residual::kScaled; }
  RopeSpec rope() const {
    return std::visit([](const auto& spec) { return spec.rope(); }, mixer);
  }
  int64_t halo_reach() const {
    return std::visit([](const auto& spec) { return spec.halo_reach(); }, mixer);
  }
  friend bool operator==(const BlockSpec&, const BlockSpec&) = default;
};

struct ModelSpec {
  int64_t vocab_size = 0;     // V
  int64_t hidden_size = 0;    // H
  int64_t max_positions = 0;  // tokens of the longest sequence that the model is meant for
  double norm_eps = 1e-5;
  bool head_fp32 = false;  // the head product runs in fp32 even where compute is bf16
  bool tied_head = true;   // the head is the embedding, and else has weights of its own
  // Norms of the stream, queries and keys multiply by 1 + their weight, which starts at 0.
  bool zero_centered_norm = false;
  int64_t pad_token_id = 0, bos_token_id = 2;  // -1: none
  std::vector<int64_t> eos_token_ids = {1};    // each ends a text; empty: none does
  std::vector<BlockSpec> blocks;

  int64_t num_blocks() const { return int64_t(blocks.size()); }
  double norm_weight_offset() const { return zero_centered_norm ? 1.0 : 0.0; }
  // The reach of the mixer that reads furthest back.
  int64_t halo_reach() const;
  // x^0 = (Emb[id] + b) * a instead of Emb[id].
  bool scaled_embedding() const { return blocks.at(0).residual == Residual::kScaled; }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// {"vocab_size": ..., "blocks": [{"mixer": {"kind": "cca", ...}, "feed_forward": {"kind": "moe",
// ...}, "residual": "scaled"}, ...]}, with the names above.  The members of a router are among
// those of its mixture, "router" names its kind where it is not ZAYA1's, and "shared_expert" is
// written where there is one: earlier versions read what they can run.
std::string to_json(const ModelSpec& model);
// kCorrupt "WHAT: key is VALUE; expected ..." for anything that to_json does not write.  tied_head
// is written only where it is false, and eos_token_ids, beside eos_token_id, its first, only where
// there are several, so that earlier versions read what they can run.
ModelSpec parse_model_spec(std::string_view json, const std::string& what);

// kConfig for sizes that do not fit each other in some block, or that no model may have: names the
// keys (model_keys.h) that state them, their values and the nearest legal ones.
void validate(const ModelSpec& model);

}  // namespace ashlar
