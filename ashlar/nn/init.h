// Initial weights are functions of logical coordinates: element i of tensor `name` depends on
// (seed, name, i) alone, so that every layout starts from the same numbers.
#pragma once

#include "ashlar/nn/model.h"

namespace ashlar::nn {

// Fills a piece of the tensor that `info` describes.
void initialize(const kernels::Context&, const ParameterInfo& info, const Piece& piece,
                uint64_t seed);
// Fills whole tensors.  Does not pack the operands.
void initialize(const kernels::Context&, const ModelWeights&, uint64_t seed);

// Throws kNumeric, naming the first weight read from `source` that is not finite.  An embedding
// that is not also the head may hold anything in rows that no token uses: rows from num_tokens() on
// (called only if needed); or, if num_tokens() is 0, which means unknown, rows at the end without
// any finite value.
void require_finite(const kernels::Context&, std::span<const Piece> weights, const ModelSpec& model,
                    const std::string& source, function_ref<int64_t()> num_tokens);

}  // namespace ashlar::nn
