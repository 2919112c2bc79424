// The tiny model of tests/fixtures/zaya1_tiny.json: its shape and its weights by formula.
#pragma once

#include <string>

#include "ashlar/core/rng.h"
#include "ashlar/spec/model_keys.h"

namespace ashlar::nn {

inline ModelKeys tiny_spec() {
  ModelKeys s;
  s.vocab_size = 11, s.hidden_size = 8, s.num_hidden_layers = 3, s.num_attention_heads = 4;
  s.num_key_value_heads = 2, s.head_dim = 4, s.num_experts = 3, s.moe_intermediate_size = 5;
  s.router_hidden_size = 6, s.rope_theta = 1e4, s.rope_theta_sliding = 100, s.sliding_window = 3;
  s.layer_types = {LayerType::kHybrid, LayerType::kHybridSliding, LayerType::kHybrid};
  s.qk_norm_eps = 0.0;
  s.pad_token_id = -1;  // every row of the embedding has its gradient
  return s;
}

// Element i of tensor `name`, as the golden file's generator makes it.
inline double golden_weight(const std::string& name, int64_t i, int64_t numel) {
  const double u = double(splitmix64(fnv1a64(name) + uint64_t(i)) >> 40) / 8388608.0 - 1.0;
  if (name.ends_with("balancing_biases")) return i == numel - 1 ? -1.0 : 0.05 * u;
  if (name.ends_with("_scale") || name.find("norm.weight") != std::string::npos ||
      name.find("layernorm") != std::string::npos)
    return 1.0 + 0.1 * u;
  if (name.ends_with("temp")) return 1.5 + 0.5 * u;
  return (name.ends_with("bias") ? 0.1 : 0.6) * u;
}

}  // namespace ashlar::nn
