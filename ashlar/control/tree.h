// The neighbours of a rank on the control links: a tree over the ranks of a run.
//
// The ranks of a node are below the node's first rank, and these first ranks form a tree over the
// nodes, whose root is rank 0.  Both are filled breadth first with at most `fan_out` children, so
// that a rank has at most 2 * fan_out children, and a node of up to fan_out + 1 ranks is a star.
// With a fan-out of 16 and 8 ranks per node, 10,240 ranks are 4 links deep.
#pragma once

#include <span>
#include <vector>

namespace ashlar::control {

inline constexpr int kFanOut = 16;

struct Tree {
  std::vector<int> parent;                 // by rank; -1: rank 0, the root
  std::vector<std::vector<int>> children;  // by rank, ascending
  std::vector<int> subtree;                // by rank: the number of ranks below it, itself included
  std::vector<int> node;                   // by rank: its node_of_rank

  int size() const { return int(parent.size()); }
  // The child of `rank` through which `target` is reached; -1 if it is not below `rank`.
  int next_hop(int rank, int target) const;
};

// node_of_rank: any numbers, equal for ranks of one machine.  At least one rank; fan_out >= 1.
Tree make_tree(std::span<const int> node_of_rank, int fan_out = kFanOut);

}  // namespace ashlar::control
