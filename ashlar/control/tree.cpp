#include "ashlar/control/tree.h"

#include <algorithm>
#include <unordered_map>

#include "ashlar/core/error.h"

namespace ashlar::control {
namespace {

// members[0] is the top; the parent of member i is member (i - 1) / fan_out.
void hang(const std::vector<int>& members, int fan_out, std::vector<int>& parent) {
  for (size_t i = 1; i < members.size(); ++i)
    parent[size_t(members[i])] = members[(i - 1) / size_t(fan_out)];
}

// Adds up from the leaves: all children of a rank come before it.
void count(const Tree& tree, int rank, std::vector<int>& subtree) {
  subtree[size_t(rank)] = 1;
  for (const int child : tree.children[size_t(rank)]) {
    count(tree, child, subtree);
    subtree[size_t(rank)] += subtree[size_t(child)];
  }
}

}  // namespace

int Tree::next_hop(int rank, int target) const {
  for (int at = target; at >= 0; at = parent[size_t(at)])
    if (parent[size_t(at)] == rank) return at;
  return -1;
}

Tree make_tree(std::span<const int> node_of_rank, int fan_out) {
  ASHLAR_ASSERT(!node_of_rank.empty() && fan_out >= 1);
  Tree tree;
  tree.node.assign(node_of_rank.begin(), node_of_rank.end());
  tree.parent.assign(tree.node.size(), -1);
  tree.children.resize(tree.node.size());
  tree.subtree.resize(tree.node.size());
  std::vector<std::vector<int>> nodes;  // in the order of their first ranks
  std::unordered_map<int, size_t> place;
  for (int rank = 0; rank < tree.size(); ++rank) {
    const auto [found, added] = place.try_emplace(tree.node[size_t(rank)], nodes.size());
    if (added) nodes.emplace_back();
    nodes[found->second].push_back(rank);
  }
  std::vector<int> heads;
  for (const std::vector<int>& members : nodes) {
    heads.push_back(members[0]);
    hang(members, fan_out, tree.parent);
  }
  hang(heads, fan_out, tree.parent);
  for (int rank = 1; rank < tree.size(); ++rank)
    tree.children[size_t(tree.parent[size_t(rank)])].push_back(rank);
  count(tree, 0, tree.subtree);
  return tree;
}

}  // namespace ashlar::control
