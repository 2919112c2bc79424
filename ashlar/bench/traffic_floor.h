// The bytes that a rank must send in a step, as closed formulas: the payload of the collectives
// that a layout needs, without padding and whatever the algorithm.
//
//   n data ranks (dp x cp), m micro-batches, root and blocks: parameters of a rank; s, a: bytes of
//   the stream and the activation type; mean over the ranks
//
//   zero  gradients                             weights
//   0     all_reduce      2 (n-1)/n (root + blocks) s
//   1     reduce_scatter    (n-1)/n (root + blocks) s      all_gather (n-1)/n (root s + blocks a)
//   2     reduce_scatter    (n-1)/n (root + m blocks) s    the same
//   3     the same                              all_gather (n-1)/n (root s + g blocks a),
//         g = 2 m - min(2, L) (2 m - 1) / L: each pass gathers L blocks, except the two that are
//         in the slots when the direction turns
//
//   ep    experts' parameters have rows of their own, over n / ep ranks
//   pp    m T (H + R) s / pp over each border, forward and backward; R: the width of the MLP
//         routers' carry
//
// Source   arXiv:1910.02054; docs/parallel/cp.md and docs/parallel/tp.md for cp and tp.
// Limits   there are no rows for Muon's messages, sums among ranks that share a key head, the few
//          bytes of losses, norms and loads, or rows of experts, which depend on the tokens; and
//          with pp none for messages within stages or over borders of virtual stages.
#pragma once

#include <string>
#include <vector>

#include "ashlar/comm/operation.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::bench {

struct TrafficFloor {
  std::string group;  // as parallel/mesh.h names it
  comm::Op op;
  std::string label;
  double bytes = 0;  // in a step
};

// parallel: resolved.
std::vector<TrafficFloor> traffic_floors(const Recipe& recipe, const ParallelSpec& parallel,
                                         DType compute);

}  // namespace ashlar::bench
