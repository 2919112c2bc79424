// The size of buckets where a recipe leaves it to the machine (parallel.bucket_bytes = "auto").
//
// A collective of less than some size does not use its links fully, and buckets that are larger
// leave less to overlap.  So a bucket has the size from which on bandwidth is saturated, as in
// ZAYA1's training ("Training Foundation Models on a Full-Stack AMD Platform", arXiv 2511.17127).
#pragma once

#include <cstdint>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::sizing {

// Sizes from which on the links of a machine are saturated.
class SaturatingSizes {
 public:
  // ranks_per_node: 0: the devices of a node.  The profile must outlive this.
  explicit SaturatingSizes(const machine::Profile& profile, int64_t ranks_per_node = 0);

  // Bytes of the whole array from which on a reduce_scatter of `ranks` members, each `stride` ranks
  // after the one before, has 90 % of its largest bandwidth: by the curve of the nearest number of
  // ranks that was measured over 4 sizes or more, else by the law of the links, T(S) = hops alpha +
  // k S / B.  They are rounded up to 64 KiB, and at most 1 GiB.
  // Errors   kConfig: the profile has neither; names the command that measures it.
  int64_t bucket_bytes(int64_t ranks, int64_t stride) const;

 private:
  struct Measured {
    int64_t ranks = 0;
    double bytes = 0;
  };
  double by_links(int64_t ranks, int64_t stride) const;

  const machine::Profile& profile_;
  int64_t ranks_per_node_;
  std::vector<Measured> curves_;  // of reduce_scatter
};

// The recipe with parallel.bucket_bytes as a number: its own, or, in place of "auto", that of its
// data ranks (dp x cp x tsp).  A single data rank sums nothing and takes the default.
// Errors   kConfig: those above and of resolve_parallel.
Recipe with_bucket_bytes(Recipe recipe, int64_t num_ranks, const SaturatingSizes& sizes);

}  // namespace ashlar::sizing
