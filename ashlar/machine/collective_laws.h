// Closed formulas of collectives over links: T = hops alpha + bytes of the busiest edge / B.  S is
// the whole array as in machine/laws.h, B a busbw, n ranks.
//
//   ring            (n - 1) alpha + (n - 1)/n S / B; all_reduce: twice that
//   tree            all_reduce: 2 log2(n) alpha + 2 S / B
//   pipelined       broadcast, reduce: (n - 2 + c) (alpha + S / (c B)) in the best c pieces
//   send_receive    alpha + S / B
//   two levels      on nodes of g ranks: a reduce_scatter of S in the node, the operation on S / g
//                   over the nodes, on every rail at once, and an all_gather of S in the node; the
//                   two halves of an all_reduce leave out the last part and the first
//
// Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
// 2005; Sanders, Speck and Traff, "Two-tree algorithms", 2009.
#pragma once

#include <cstdint>

#include "ashlar/machine/laws.h"

namespace ashlar::machine {

// The number of latencies in a row, and the bytes that pass the busiest edge.
struct LinkLaw {
  double hops = 0, bytes = 0;
  double time_s(double alpha_s, double bytes_a_second) const {
    return hops * alpha_s + bytes / bytes_a_second;
  }
};

LinkLaw ring_law(CollectiveOp op, int64_t n, double S);
LinkLaw tree_law(int64_t n, double S);  // of an all_reduce
LinkLaw pipelined_law(int64_t n, double S, double alpha_s, double bytes_a_second);

struct TwoLevelLaw {
  LinkLaw node, rail;
  int num_in_node = 1;  // parts in the node
};
// op: all_reduce, reduce_scatter or all_gather.  in_node: g.
TwoLevelLaw two_level_law(CollectiveOp op, int64_t in_node, int64_t num_nodes, double S);

enum class LinkAlgorithm : uint8_t { kRing, kTree, kTwoLevel };

struct HopRates {
  double alpha_s = 0, bytes_a_second = 0;
};

// A group, and the links of its flat ring, of its part of a node, and of a rail.
struct LinkGroup {
  double num_ranks = 1, num_nodes = 1;
  HopRates flat, node, rail;
  // Whether two levels are possible: all nodes have equally many ranks, and more than one.
  bool has_levels() const;
};

struct FastestLaw {
  LinkAlgorithm algorithm = LinkAlgorithm::kRing;
  double time_s = 0;
};
// The algorithm that libraries choose: a ring; for all_reduce also a tree; over nodes also two
// levels.
FastestLaw fastest_law(CollectiveOp op, const LinkGroup& group, double S);

}  // namespace ashlar::machine
