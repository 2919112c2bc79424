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

// For weights that were read from `source`: kNumeric, naming the first that is not finite.
void require_finite(const kernels::Context&, std::span<const Piece> weights,
                    const std::string& source);

}  // namespace ashlar::nn
