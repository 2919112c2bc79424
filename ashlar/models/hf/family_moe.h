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

// The mixture of the blocks that have experts, which they get.  width_key: states the width of an
// expert; num_chosen: experts of a token where the file says nothing.
void read_mixture(const HfFields& fields, const std::string& width_key, int64_t num_chosen,
                  HfConfig& config);
// norm_topk_prob, where a family's configs have it.
void read_renormalize(const HfFields& fields, bool fallback, ModelSpec& model);
// Which blocks have experts: every decoder_sparse_step-th, but for mlp_only_layers; at least one.
// otherwise: what a model without is, for messages.
void read_sparse_blocks(const HfFields& fields, const char* otherwise, ModelSpec& model);
// The width of the others, where there are any.
void read_dense_blocks(const HfFields& fields, HfConfig& config);
// Whether there are mixtures whose weights are probabilities over all experts, with nothing else
// that no config states; renormalized: that they add up to 1, too.
bool states_router(const MoeSpec* moe);
bool states_renormalized_router(const MoeSpec* moe);
void write_mixture(const ModelSpec& model, const HfBlocks& blocks, Json& json);
// As Qwen's configs state it.
void write_sparse_blocks(const ModelSpec& model, const HfBlocks& blocks, Json& json);

}  // namespace ashlar::models
