// Proof that boxes tile a tensor exactly once.
//
// Hash   With p = 2^61 - 1 and pseudo-random g_d per (seed, name, dim), a box has
//          H = w * prod_d g_d^offset_d * (g_d^length_d - 1) / (g_d - 1)  mod p,
//        the weighted sum over its elements of prod_d g_d^x_d.  The sum over boxes equals the H of
//        the whole shape iff they tile it, except with a probability below
//        (sum of extents) / p per lane; there are two lanes.  Sums over tensors and ranks add up.
//        An empty box adds 0; a scalar adds w.
// Cost   O(ndim * log extent) per box.  The sweep, which finds a wrong element, is O(n log n) for
//        cuts along one dim, and stops after a bounded number of steps.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/core/function_ref.h"
#include "ashlar/tensor/shape.h"

namespace ashlar::checkpoint {

struct CoverHash {
  std::array<uint64_t, 2> lanes{};
  CoverHash& operator+=(const CoverHash& other);
  friend bool operator==(const CoverHash&, const CoverHash&) = default;
};

// The generators of one tensor; make it once, hash many boxes.
class CoverHasher {
 public:
  CoverHasher(uint64_t seed, std::string_view name, int ndim);
  CoverHash operator()(const Box& box) const;

 private:
  struct Lane {
    uint64_t weight;
    std::array<uint64_t, Shape::kMaxDims> generator, inverse;  // inverse of generator - 1
  };
  int ndim_;
  std::array<Lane, 2> lanes_;
};

// Describes why the boxes do not tile `shape`, and names an element if the sweep finds one within
// its steps; nullopt if their hash, with generators drawn anew for every call, is that of the
// shape.  Every box must lie inside the shape.  box_of(i) is the i-th of num_boxes.
std::optional<std::string> find_cover_error(const Shape& shape, size_t num_boxes,
                                            function_ref<const Box&(size_t)> box_of);
std::optional<std::string> find_cover_error(const Shape& shape, std::span<const Box> boxes);

}  // namespace ashlar::checkpoint
