// The links of a cluster as resources, and what collectives take of them by law.  Every device has
// its links to the others of its node and a NIC; the NICs of all nodes may share a spine that
// carries less than all of them.
//
//   in a node    a ring over the links that a group of n uses (machine/laws.h, node_ceiling)
//   over nodes   a ring over all NICs of the group's ranks; for all_reduce, a tree or two levels
//                (reduce_scatter in the node, all_reduce on each rail, all_gather in the node) if
//                that is faster, as libraries choose
//   latency      hops times that of the worst edge, so a group over more nodes takes longer, small
//                messages too
#pragma once

#include <optional>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/sim/costs.h"

namespace ashlar::sim {

enum class LinkAlgorithm : uint8_t { kRing, kTree, kTwoLevel };

class ClusterLinks {
 public:
  // ranks_per_node: rank r is on node r / ranks_per_node, one rank a device.
  // Errors   kConfig: the profile lacks a rate or a latency that is needed.
  ClusterLinks(const machine::Profile& profile, int num_ranks, int ranks_per_node);

  void build(FlowSets& sets);
  // algorithm: of an all_reduce over nodes; empty: the fastest.
  std::vector<OperationPart> parts(const std::vector<int>& ranks, const RankOperation& operation,
                                   std::optional<LinkAlgorithm> algorithm = {}) const;
  OperationPart message(int from, int to, double bytes) const;

  int node_of(int rank) const { return rank / ranks_per_node_; }
  // The number of nodes that the ranks are on.
  int num_nodes(const std::vector<int>& ranks) const;

 private:
  struct Rates {
    double alpha_s = 0, bytes_a_second = 0;
  };
  OperationPart over_links(const std::vector<int>& ranks, double hops, double bytes,
                           double nic_share) const;
  Rates rates_of(const std::vector<int>& ranks) const;
  std::vector<OperationPart> two_levels(const std::vector<int>& ranks, double S) const;
  double ranks_of_a_node(const std::vector<int>& ranks) const;

  const int num_ranks_, ranks_per_node_;
  bool mesh_ = false;
  double link_ = 0, nic_ = 0, spine_ = 0;  // bytes a second, as far as usable
  double link_alpha_s_ = 0, nic_alpha_s_ = 0;
  // Resources, by rank; a spine, or -1.
  std::vector<int> device_, nic_up_, nic_down_;
  int spine_resource_ = -1;
};

// The time of a part whose links carry nothing else.
double alone_s(const OperationPart& part, const FlowSets& sets);

}  // namespace ashlar::sim
