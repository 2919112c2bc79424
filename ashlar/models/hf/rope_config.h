// RoPE in the config.json of families with softmax attention:
//
//   transformers 4   rope_theta, and rope_scaling: null or {rope_type (or type), factor, ...}
//   transformers 5   rope_parameters: {rope_theta, rope_type, factor, ...}
//
// A rope_scaling that is not empty takes the place of all of rope_parameters, as in transformers.
#pragma once

#include "ashlar/models/hf/attention_config.h"

namespace ashlar::models {

// Reads the base, the rotated part and the scaling of a model meant for max_positions.
void read_rope(const HfFields& fields, const HfDefaults& defaults, int64_t max_positions,
               AttentionSpec& attention);
// Writes the RoPE of all blocks, in both forms.
void write_rope(const ModelSpec& model, const AttentionSpec& attention, Json& json);

}  // namespace ashlar::models
