// Weights are born from logical coordinates: element i of tensor `name` is a function of (seed,
// name, i), so any layout starts from the same numbers.
#pragma once

#include "ashlar/nn/model.h"

namespace ashlar::nn {

// Where a tensor lies in the whole model: boxes of the logical tensor, one after another in memory.
struct Region {
  Shape global_shape;
  std::vector<Box> boxes;
};
using RegionOf = function_ref<Region(const ParameterInfo&, const Tensor&)>;

// One tensor, or the part of it that `region` says.
void initialize(const kernels::Context&, const ParameterInfo&, const Region& region,
                const Tensor& tensor, const ModelSpec&, const InitSpec&, uint64_t seed);
// Does not pack the operands.  The first: every tensor is whole.
void initialize(const kernels::Context&, const ModelWeights&, const ModelSpec&, const InitSpec&,
                uint64_t seed);
void initialize(const kernels::Context&, const ModelWeights&, const ModelSpec&, const InitSpec&,
                uint64_t seed, RegionOf region_of);

}  // namespace ashlar::nn
