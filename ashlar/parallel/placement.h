// The place that the local part of a tensor has in the whole model.
//
//   query heads    [r N/n, (r+1) N/n) of the r-th of n shares
//   key heads      [r K/n, (r+1) K/n); where n > K, head r K/n, which n/K shares hold
//   values         the columns of the key heads in the flat [current | delayed] of the whole model:
//                  a share may hold one kind only
//   expert width   [r F/n, (r+1) F/n) of gate, of up and of down's columns
//
// Layers state this in the cuts of their tensors (nn/parameters.h).
#pragma once

#include <vector>

#include "ashlar/nn/parameters.h"

namespace ashlar::parallel {

struct Placement {
  Shape global_shape;
  std::vector<Box> boxes;  // boxes of the logical tensor, one after another in memory
  int copy = 0, num_copies = 1;
  // Extents of all boxes together in memory; a vector if they do not form one shape.
  Shape local_shape{};
  int64_t numel() const {
    int64_t sum = 0;
    for (const Box& box : boxes) sum += box.length.numel();
    return sum;
  }
};

// The places of all elements of a tensor that the share holds, one placement after another in
// memory; there are several where not all elements have equally many copies.  For a tensor whose
// parts are held share after share, the boxes of all shares in their order.  A pure function.
std::vector<Placement> placements(const nn::ParameterInfo& info, const nn::Share& share);

}  // namespace ashlar::parallel
