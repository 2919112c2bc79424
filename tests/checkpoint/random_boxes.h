// Tilings of a shape by boxes, drawn at random.
#pragma once

#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

class Draw {
 public:
  Draw(uint64_t seed, const char* name) : rng_(seed, name) {}
  int64_t below(int64_t bound) { return int64_t(rng_.below(next_++, uint64_t(bound))); }

 private:
  Rng rng_;
  uint64_t next_ = 0;
};

// Splits boxes at random places, about `count` times.
inline std::vector<Box> random_tiling(const Shape& shape, int64_t count, Draw& draw) {
  std::vector<Box> boxes{Box::whole(shape)};
  for (int64_t i = 0; i < count && shape.ndim() > 0; ++i) {
    const size_t at = size_t(draw.below(int64_t(boxes.size())));
    const int d = int(draw.below(shape.ndim()));
    if (boxes[at].length[d] < 2) continue;
    const int64_t cut = 1 + draw.below(boxes[at].length[d] - 1);
    Box right = boxes[at];
    right.offset[d] += cut;
    right.length[d] -= cut;
    boxes[at].length[d] = cut;
    boxes.push_back(right);
  }
  return boxes;
}

}  // namespace ashlar::checkpoint
