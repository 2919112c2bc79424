// A ZAYA1 model as recipes and config.json state it: sizes, and the choices that change its
// arithmetic.  Field names are the native Hugging Face ones where one exists.  Plain values;
// validate() is the one place that judges them.  What the rest of the program reads is the
// ModelSpec that model_of makes of it.
//
// Source  ZAYA1, arXiv 2511.17127 and 2605.05365; the released configurations
//         (docs/formats/model.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/spec/model_spec.h"

namespace ashlar {

enum class LayerType : uint8_t { kHybrid, kHybridSliding };

struct ZayaSpec {
  int64_t vocab_size = 0;             // V
  int64_t hidden_size = 0;            // H
  int64_t num_hidden_layers = 0;      // L, blocks of one attention and one mixture of experts
  int64_t num_attention_heads = 0;    // N
  int64_t num_key_value_heads = 0;    // K
  int64_t head_dim = 0;               // D
  int64_t num_experts = 0;            // E; the router has one class more (skip)
  int64_t moe_intermediate_size = 0;  // F
  int64_t router_hidden_size = 0;     // R
  double rms_norm_eps = 1e-5;
  double partial_rotary_factor = 0.5;
  double rope_theta = 1e4;             // blocks of type hybrid
  double rope_theta_sliding = 1e4;     // blocks of type hybrid_sliding
  int64_t sliding_window = 0;          // counts the token itself; 0: none
  std::vector<LayerType> layer_types;  // one per block
  int64_t max_position_embeddings = 32768;
  int64_t pad_token_id = 0, bos_token_id = 2, eos_token_id = 1;

  SkipOutput skip_output = SkipOutput::kZero;
  bool head_fp32 = false;      // the head product in fp32 even when compute is bf16
  double qk_norm_eps = 1e-12;  // guard under the root of the QK norm; 0 in the golden vector

  int64_t groups() const { return num_attention_heads / num_key_value_heads; }  // G
  int64_t q_dim() const { return num_attention_heads * head_dim; }
  int64_t kv_dim() const { return num_key_value_heads * head_dim; }
  int64_t conv_channels() const { return q_dim() + kv_dim(); }  // C
  int64_t qkv_dim() const { return q_dim() + 2 * kv_dim(); }    // rows of q, k, v1, v2
  int64_t rotary_dim() const { return int64_t(double(head_dim) * partial_rotary_factor); }
  int64_t num_classes() const { return num_experts + 1; }
  int64_t window_of(int64_t layer) const {  // 0: no window
    return layer_types[size_t(layer)] == LayerType::kHybrid ? 0 : sliding_window;
  }
  friend bool operator==(const ZayaSpec&, const ZayaSpec&) = default;
};

ModelSpec model_of(const ZayaSpec& spec);
// kConfig, naming the first block that ZAYA1 does not have, where it is another model.
ZayaSpec zaya_of(const ModelSpec& model);

// kConfig with the key, its value and the nearest legal values.  `section` prefixes key names in
// messages ("model." in recipes, "" for config.json).
void validate(const ZayaSpec& spec, const std::string& section);

}  // namespace ashlar
