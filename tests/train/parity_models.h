// The models that the table of layouts trains, as keys of the tiny recipe.
#pragma once

#include "tests/train/parity.h"

namespace ashlar::train {

using Overrides = std::vector<std::string>;

inline Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const Overrides kWindows = {"model.layer_types=alternate", "model.sliding_window=9"};
// Few tokens an expert, and many experts that get none.
inline const Overrides kUneven = {"model.num_experts=7", "model.num_hidden_layers=3",
                                  "moe.skip_output=identity", "train.recompute=true"};
// Dense models: Llama's, with a head of its own; Qwen3's, and with windows in every second block;
// and blocks of every kind in one model.
inline const Overrides kDense = {"model.layer_types=full_attention", "model.intermediate_size=40"};
inline const Overrides kLlama = joined(kDense, {"model.tie_word_embeddings=false"});
inline const Overrides kQwen3 = joined(kDense, {"model.qk_norm=rms", "train.recompute=true"});
inline const Overrides kMixed = {
    "model.layer_types=[\"cca+mlp\", \"attention_sliding+moe\", \"attention+mlp\"]",
    "model.num_hidden_layers=3",
    "model.intermediate_size=40",
    "model.qk_norm=rms",
    "model.sliding_window=9",
    "model.rope_original_positions=16",
    "model.rope_factor=4"};
// MiniMax's residuals, and Qwen3-Next's attention.
inline const Overrides kFactors = {"model.residual=normed", "model.full_attn_alpha_factor=1.2",
                                   "model.full_attn_beta_factor=0.9", "model.mlp_alpha_factor=1.1",
                                   "model.mlp_beta_factor=0.8"};
inline const Overrides kGated =
    joined(kDense, {"model.qk_norm=rms", "model.zero_centered_norm=true",
                    "model.partial_rotary_factor=0.5", "model.attention_output_gate=true"});
inline const Overrides kNormedGated = joined(kGated, kFactors);
// Biases: of all projections, with YaRN; of queries, keys and values beside a gate and norms.
inline const Overrides kBiased =
    joined(kLlama, {"model.attention_bias=qkvo", "model.rope_type=yarn",
                    "model.rope_original_positions=16", "model.rope_factor=4"});
inline const Overrides kBiasedGated =
    joined(kGated, {"model.attention_bias=qkv", "train.recompute=true"});
inline const Overrides kRecompute = {"train.recompute=true"};
// Mixtures with a linear router: Mixtral's; many experts of which most get no token; one that gets
// all; Qwen3-MoE's with a dense first block, recomputed; and one with a gated shared expert whose
// router has losses and balancing biases, over two rows a micro-batch.
inline const Overrides kTopK = {"model.layer_types=attention+moe", "model.router=linear",
                                "model.tie_word_embeddings=false"};
inline const Overrides kMixtral =
    joined(kTopK, {"model.num_experts=7", "model.num_experts_per_tok=2"});
inline const Overrides kManyExperts =
    joined(kTopK, {"model.num_experts=60", "model.num_experts_per_tok=2"});
inline const Overrides kOneExpert = joined(kTopK, {"model.num_experts=1"});
inline const Overrides kQwen3Moe = {
    "model.layer_types=[\"attention+mlp\", \"attention+moe\", \"attention_sliding+moe\"]",
    "model.num_hidden_layers=3",
    "model.intermediate_size=40",
    "model.qk_norm=rms",
    "model.sliding_window=9",
    "model.router=linear",
    "model.num_experts_per_tok=3",
    "model.norm_topk_prob=false",
    "train.recompute=true"};
inline const Overrides kShared =
    joined(kTopK, {"model.num_experts=6", "model.num_experts_per_tok=2",
                   "model.router_expert_bias=true", "model.shared_expert_intermediate_size=24",
                   "model.shared_expert_gate=true", "moe.router_aux_loss_coef=0.05",
                   "moe.router_z_loss_coef=0.02", "moe.balance.lr=0.05", "train.micro_batch=2"});
inline const Overrides kNormedMoe = joined(kMixtral, kFactors);
inline const Overrides kAdamW = {"optim.matrices=adamw", "train.micro_batch=2"};
inline const Overrides kEight = {"model.num_experts=8"};

// Adds the layouts of ranks that share heads and sequences (parity_tsp_cases.cpp).
void add_tsp_cases(std::vector<ParityCase>& cases);
// Adds those of models with linear mixers (parity_linear_cases.cpp).
void add_linear_cases(std::vector<ParityCase>& cases);
// Adds those of runs that freeze tensors (parity_tune_cases.cpp).
void add_tune_cases(std::vector<ParityCase>& cases);
// Adds those of models with odd widths (parity_width_cases.cpp).
void add_width_cases(std::vector<ParityCase>& cases);

}  // namespace ashlar::train
