// The coordinates of a rank that say which share of the model it has.  Ranks with the same ones
// differ in the place of their shards only.
#pragma once

#include <compare>

#include "ashlar/parallel/mesh.h"

namespace ashlar::plan {

struct MeshPlace {
  int pp, cp, tsp, tp, experts;
  auto operator<=>(const MeshPlace&) const = default;
};

inline MeshPlace place_of(const parallel::Mesh& mesh, const ParallelSpec& parallel, int rank) {
  using parallel::Axis;
  const int data = mesh.number_within(rank, parallel::kTokenAxes);
  return {mesh.coordinate(rank, Axis::kPp), mesh.coordinate(rank, Axis::kCp),
          mesh.coordinate(rank, Axis::kTsp), mesh.coordinate(rank, Axis::kTp),
          data % int(parallel.ep)};
}

}  // namespace ashlar::plan
