// A model, block by block: what its layers are made from, whatever family it belongs to.  Plain
// values, made of what a recipe or a config.json states (zaya_spec.h) and kept whole in the
// model.json of every saved step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar {

// What the skip class of a router adds: nothing, or p * m.
enum class SkipOutput : uint8_t { kZero, kIdentity };
// How branches join the stream: both scaled and shifted by learned vectors before they are added.
enum class Residual : uint8_t { kScaled };

// Compressed Convolutional Attention (nn/cca_attention.h).
struct CcaSpec {
  static constexpr int64_t kMaxHeadDim = 256;  // what the attention kernels hold

  int64_t num_query_heads = 0;  // N
  int64_t num_key_heads = 0;    // K
  int64_t head_dim = 0;         // D
  double rotary_factor = 0.5;   // share of a head's channels that RoPE rotates
  int64_t window = 0;           // tokens that a query sees, itself included; 0: all before it
  double rope_theta = 1e4;
  double qk_norm_eps = 1e-12;  // guard under the root

  int64_t q_dim() const { return num_query_heads * head_dim; }
  int64_t kv_dim() const { return num_key_heads * head_dim; }
  int64_t conv_channels() const { return q_dim() + kv_dim(); }  // C
  int64_t rotary_dim() const { return int64_t(double(head_dim) * rotary_factor); }
  friend bool operator==(const CcaSpec&, const CcaSpec&) = default;
};

// Mixture of experts with ZAYA1's router (nn/moe.h).
struct MoeSpec {
  int64_t num_experts = 0;   // E; the router has one class more (skip)
  int64_t width = 0;         // F, inside an expert
  int64_t router_width = 0;  // R
  SkipOutput skip_output = SkipOutput::kZero;

  int64_t num_classes() const { return num_experts + 1; }
  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

struct BlockSpec {
  CcaSpec mixer;
  MoeSpec feed_forward;
  Residual residual = Residual::kScaled;
  friend bool operator==(const BlockSpec&, const BlockSpec&) = default;
};

struct ModelSpec {
  int64_t vocab_size = 0;     // V
  int64_t hidden_size = 0;    // H
  int64_t max_positions = 0;  // of the longest sequence that the model is meant for
  double norm_eps = 1e-5;
  bool head_fp32 = false;  // the head product in fp32 even when compute is bf16
  int64_t pad_token_id = 0, bos_token_id = 2, eos_token_id = 1;
  std::vector<BlockSpec> blocks;

  int64_t num_blocks() const { return int64_t(blocks.size()); }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// {"vocab_size": ..., "blocks": [{"mixer": {"kind": "cca", ...}, "feed_forward": {"kind": "moe",
// ...}, "residual": "scaled"}, ...]}, with the names above.
std::string to_json(const ModelSpec& model);
// kCorrupt "WHAT: key is VALUE; expected ..." for anything but what to_json writes.
ModelSpec parse_model_spec(std::string_view json, const std::string& what);

}  // namespace ashlar
