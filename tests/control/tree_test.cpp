// The tree over ranks: every rank once, few children, nodes kept together, few links deep.
#include "ashlar/control/tree.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ashlar/core/rng.h"

namespace ashlar::control {
namespace {

int depth_of(const Tree& tree, int rank) {
  int depth = 0;
  for (; tree.parent[size_t(rank)] >= 0; rank = tree.parent[size_t(rank)]) ++depth;
  return depth;
}

void expect_tree(const Tree& tree, int fan_out) {
  EXPECT_EQ(tree.parent[0], -1);
  EXPECT_EQ(tree.subtree[0], tree.size());
  for (int rank = 0; rank < tree.size(); ++rank) {
    EXPECT_LE(tree.children[size_t(rank)].size(), size_t(2 * fan_out));
    EXPECT_TRUE(std::ranges::is_sorted(tree.children[size_t(rank)]));
    for (const int child : tree.children[size_t(rank)]) EXPECT_EQ(tree.parent[size_t(child)], rank);
    int crossings = 0;  // of links between nodes into this rank's node
    for (int at = rank; tree.parent[size_t(at)] >= 0; at = tree.parent[size_t(at)])
      crossings += tree.node[size_t(tree.parent[size_t(at)])] != tree.node[size_t(at)] &&
                   tree.node[size_t(at)] == tree.node[size_t(rank)];
    EXPECT_LE(crossings, 1);  // a node is entered once
  }
}

TEST(Tree, OfOneRank) {
  const Tree tree = make_tree(std::vector<int>{7});
  EXPECT_EQ(tree.parent, std::vector<int>{-1});
  EXPECT_TRUE(tree.children[0].empty());
}

TEST(Tree, IsAStarInsideANodeAndATreeOverNodes) {
  std::vector<int> nodes;
  for (int rank = 0; rank < 40 * 8; ++rank) nodes.push_back(rank / 8);
  const Tree tree = make_tree(nodes);
  expect_tree(tree, kFanOut);
  for (int rank = 0; rank < tree.size(); ++rank) {
    const int head = rank / 8 * 8;
    const int expected = rank != head ? head : rank == 0 ? -1 : (rank / 8 - 1) / kFanOut * 8;
    EXPECT_EQ(tree.parent[size_t(rank)], expected);
  }
  EXPECT_EQ(tree.children[0].size(), 7u + 16u);
}

TEST(Tree, OfTenThousandRanksIsFourLinksDeep) {
  std::vector<int> nodes;
  for (int rank = 0; rank < 10'240; ++rank) nodes.push_back(rank / 8);
  const Tree tree = make_tree(nodes);
  expect_tree(tree, kFanOut);
  int depth = 0;
  for (int rank = 0; rank < tree.size(); ++rank) depth = std::max(depth, depth_of(tree, rank));
  EXPECT_EQ(depth, 4);
}

TEST(Tree, OfAnyPlacement) {
  const Rng rng(3, "placements");
  for (uint64_t round = 0; round < 200; ++round) {
    const int ranks = 1 + int(rng.below(1000 * round, 90));
    const int fan_out = 1 + int(rng.below(1000 * round + 1, 5));
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank)
      nodes.push_back(int(rng.below(1000 * round + 2 + uint64_t(rank), 9)));
    const Tree tree = make_tree(nodes, fan_out);
    expect_tree(tree, fan_out);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(tree.next_hop(rank, rank), -1);
      int below = 1;
      for (int target = 0; target < ranks; ++target) {
        const int hop = tree.next_hop(rank, target);
        if (hop < 0) continue;
        ++below;
        EXPECT_EQ(tree.parent[size_t(hop)], rank);
        EXPECT_TRUE(hop == target || tree.next_hop(hop, target) >= 0);
      }
      EXPECT_EQ(below, tree.subtree[size_t(rank)]);
    }
  }
}

}  // namespace
}  // namespace ashlar::control
