// The part of ZAYA1's family that writes its config.json.
#pragma once

#include "ashlar/models/hf/family.h"

namespace ashlar::models {

// Blocks with a window may have their own RoPE: another base, another rotated part of a head.
bool states_zaya(const ModelSpec& model);
void write_zaya(const ModelSpec& model, HfLayout layout, Json& json);

}  // namespace ashlar::models
