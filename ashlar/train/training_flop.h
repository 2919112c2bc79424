// The flop of a token in training, for MFU: those of the whole model, without the gradients of
// frozen weights and with the adapters.
#pragma once

#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// sizing's model_flop(...).training if the recipe trains all tensors.  A frozen weight saves 2 flop
// a token that meets it, an adapter's takes 6.
double training_flop(const Recipe& recipe);

}  // namespace ashlar::train
