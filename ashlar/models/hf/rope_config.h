// What a config.json states of RoPE, in the families with softmax attention:
//
//   transformers 4   rope_theta, and rope_scaling: null or {rope_type (or type), factor, ...}
//   transformers 5   rope_parameters: {rope_theta, rope_type, factor, ...}
//
// A rope_scaling that says anything stands for all of rope_parameters, as in transformers.
#pragma once

#include "ashlar/models/hf/attention_config.h"

namespace ashlar::models {

// After model.max_position_embeddings, head_dim and layer_types.
void read_rope(const HfFields& fields, const HfDefaults& defaults, ModelKeys& model);
// rope_theta of all blocks, in every form.
void write_rope(const ModelKeys& keys, double theta, Json& json);

}  // namespace ashlar::models
