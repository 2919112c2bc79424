// How a rank's tensor lies in the whole model.
#pragma once

#include <vector>

#include "ashlar/nn/parameters.h"

namespace ashlar::parallel {

struct Placement {
  Shape global_shape;
  std::vector<Box> boxes;  // of the logical tensor, one after another in memory
  int copy = 0, num_copies = 1;
  int64_t numel() const {
    int64_t sum = 0;
    for (const Box& box : boxes) sum += box.length.numel();
    return sum;
  }
};
// Of all elements of the tensor, one placement after another in memory: several where not all of
// them have as many copies.
using PlacementsOf =
    function_ref<std::vector<Placement>(const nn::ParameterInfo&, const Tensor& local)>;

}  // namespace ashlar::parallel
