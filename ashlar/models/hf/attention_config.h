// The part of config.json that all families with softmax attention share, beside feed-forwards and
// RoPE (hf/rope_config.h), as transformers 4 and 5 write it.  The keys written are those that both
// read.
#pragma once

#include <optional>

#include "ashlar/models/hf/blocks.h"
#include "ashlar/models/hf/family.h"
#include "ashlar/models/hf/reader.h"

namespace ashlar::models {

// The values that transformers assumes where a config is silent.
struct HfDefaults {
  double norm_eps = 1e-6, rope_theta = 1e4;
  double rotary_factor = 1.0;  // below 1: the family's configs may state the rotated part
  int64_t positions = 32768;
  int64_t key_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;   // 0: hidden_size / num_attention_heads
  // Whether null stands for these defaults, too.
  bool null_key_heads = true, null_head_dim = true;
  bool states_bias = false;  // attention_bias says whether all four projections have a bias
  AttentionBias bias = AttentionBias::kNone;
};

// Choices that all models of a family share and that its configs do not state.
struct HfArithmetic {
  QkNorm norm = QkNorm::kNone;
  Residual residual = Residual::kPlain;
  bool gated = false;  // attention's output has a gate, norms are zero-centred, RoPE may be partial
  bool states_bias = false;                   // with attention_bias: none or all
  AttentionBias bias = AttentionBias::kNone;  // otherwise
};

// Reads sizes, heads, biases, RoPE, norms and ids, into blocks of attention without a window and an
// mlp.  Refuses other activations.
HfConfig read_attention_config(const HfFields& fields, const HfDefaults& defaults = {});
// Refuses a layer_types that is neither null nor `type` for every block.
void require_layer_types(const HfFields& fields, const char* type);
// sliding_window, where use_sliding_window asks for one, else nullopt; for Qwen's families.
std::optional<int64_t> read_window(const HfFields& fields);
// Whether such a config states all of the model but its feed-forwards and linear mixers: some block
// has softmax attention, blocks of a kind are alike, and those with a window differ from the others
// in it and in the base of RoPE alone.
bool states_attention_config(const ModelSpec& model, const HfBlocks& blocks,
                             const HfArithmetic& arithmetic);
void write_attention_config(const ModelSpec& model, const HfBlocks& blocks, Json& json);
// Writes attention_bias, in families where it states the biases.
void write_bias(const HfBlocks& blocks, Json& json);
// Writes sliding_window: the window of the blocks that have one, or null.
void write_window(const HfBlocks& blocks, Json& json);

}  // namespace ashlar::models
