// The part of config.json about mixtures, in all families with a linear router.
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

// Reads the mixture and gives it to the blocks that have experts.  width_key: the key of an
// expert's width; num_chosen: experts per token where the file does not say.
void read_mixture(const HfFields& fields, const std::string& width_key, int64_t num_chosen,
                  HfConfig& config);
// Reads norm_topk_prob, in families whose configs have it.
void read_renormalize(const HfFields& fields, bool fallback, ModelSpec& model);
// Reads which blocks have experts: every decoder_sparse_step-th except mlp_only_layers, at least
// one. otherwise: names a model without experts, for messages.
void read_sparse_blocks(const HfFields& fields, const char* otherwise, ModelSpec& model);
// Reads the width of the other blocks, if there are any.
void read_dense_blocks(const HfFields& fields, HfConfig& config);
// Whether a config can state the mixture's router: its weights are probabilities over all experts,
// unscaled and without biases.  renormalized: the weights of a token also add up to 1.
bool states_router(const MoeSpec* moe);
bool states_renormalized_router(const MoeSpec* moe);
void write_mixture(const ModelSpec& model, const HfBlocks& blocks, Json& json);
// Writes the experts' width and the window as Mixtral's configs state them.
void write_mixtral_blocks(const HfBlocks& blocks, Json& json);
// Writes the mixture's sizes and the dense blocks as Qwen's configs state them.
void write_sparse_blocks(const ModelSpec& model, const HfBlocks& blocks, Json& json);

}  // namespace ashlar::models
