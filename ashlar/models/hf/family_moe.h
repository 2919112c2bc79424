// What the config.json of every family with experts and a linear router states of its mixtures.
#pragma once

#include "ashlar/models/hf/rope_config.h"

namespace ashlar::models {

inline constexpr HfExpertNames kMixtralExperts{.router = "block_sparse_moe.gate.weight",
                                               .gate = "block_sparse_moe.experts.{}.w1.weight",
                                               .up = "block_sparse_moe.experts.{}.w3.weight",
                                               .down = "block_sparse_moe.experts.{}.w2.weight"};
inline constexpr HfExpertNames kQwen3MoeExperts{.router = "mlp.gate.weight",
                                                .gate = "mlp.experts.{}.gate_proj.weight",
                                                .up = "mlp.experts.{}.up_proj.weight",
                                                .down = "mlp.experts.{}.down_proj.weight"};

// The first block whose type `is` says so; as many as there are: none.
template <typename Is>
int64_t first_block(const ModelKeys& keys, Is is) {
  return std::find_if(keys.layer_types.begin(), keys.layer_types.end(), is) -
         keys.layer_types.begin();
}
inline bool has_experts(const LayerType& type) {
  return type.feed_forward == MoeSpec::kKind;
}

// The mixture of the blocks that have experts.  width_key: states the width of an expert;
// num_chosen: experts of a token where the file says nothing.
void read_mixture(const HfFields& fields, const std::string& width_key, int64_t num_chosen,
                  HfConfig& config);
// Which blocks have experts: every decoder_sparse_step-th, but for mlp_only_layers; at least one.
// otherwise: what a model without is, for messages.
void read_sparse_blocks(const HfFields& fields, const char* otherwise, ModelKeys& model);
// The width of the others, where there are any.
void read_dense_blocks(const HfFields& fields, HfConfig& config);
// Whether weights are probabilities over all experts, with nothing else that no config states.
bool states_router(const ModelKeys& keys);
void write_mixture(const ModelKeys& keys, Json& json);
// As Qwen's configs state it.
void write_sparse_blocks(const ModelKeys& keys, Json& json);

}  // namespace ashlar::models
