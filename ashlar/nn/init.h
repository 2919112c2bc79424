// Weights are born from logical coordinates: element i of tensor `name` is a function of (seed,
// name, i), so any layout starts from the same numbers.
#pragma once

#include "ashlar/nn/model.h"

namespace ashlar::nn {

// A piece of the tensor that `info` describes.
void initialize(const kernels::Context&, const ParameterInfo& info, const Piece& piece,
                uint64_t seed);
// Whole tensors.  Does not pack the operands.
void initialize(const kernels::Context&, const ModelWeights&, uint64_t seed);

// For weights of the model that were read from `source`: kNumeric, naming the first that is not
// finite.  The rows of an embedding that is not the head may hold anything where no token has them:
// rows from num_tokens() on, which is asked if need be; or where it says 0, which is unknown, rows
// at the end that hold no finite value at all.
void require_finite(const kernels::Context&, std::span<const Piece> weights, const ModelSpec& model,
                    const std::string& source, function_ref<int64_t()> num_tokens);

}  // namespace ashlar::nn
