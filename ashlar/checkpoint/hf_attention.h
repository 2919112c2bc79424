// What the config.json of every family with softmax attention states beside its feed-forwards, as
// transformers 4 and 5 write it:
//
//   transformers 4   rope_theta, and rope_scaling: null or {rope_type (or type), factor, ...}
//   transformers 5   rope_parameters: {rope_theta, rope_type, factor, ...}
//
// Written is what both read.
#pragma once

#include "ashlar/checkpoint/hf_family.h"
#include "ashlar/checkpoint/hf_reader.h"

namespace ashlar::checkpoint {

// The values that transformers assumes where a config is silent: those of Llama and Qwen3.
struct HfDefaults {
  double norm_eps = 1e-6, rope_theta = 1e4;
  double rotary_factor = 1.0;  // below 1: the family's configs may state the part that rotates
};

// What all models of a family have, and no config of it states.
struct HfArithmetic {
  QkNorm norm = QkNorm::kNone;
  Residual residual = Residual::kPlain;
  bool gated = false;  // the output of attention; norms are then zero-centred, RoPE may be partial
};

// Sizes, heads, RoPE, norms and ids; blocks of attention and an mlp, none with a window.  Refuses
// what no family here has: biases, other activations, dropout, quantisation.
HfConfig read_attention_config(const HfFields& fields, const HfDefaults& defaults = {});
// Whether all of the model but its feed-forwards, windows and linear mixers is stated by such a
// config.
bool states_attention_config(const ModelKeys& keys, const HfArithmetic& arithmetic);
void write_attention_config(const ModelKeys& keys, Json& json);

}  // namespace ashlar::checkpoint
