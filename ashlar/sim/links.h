// The links of a cluster as resources, and what collectives take of them by law.  Every device has
// its links to the others of its node and a NIC; the NICs of all nodes may share a spine that
// carries less than all of them.
//
//   in a node    a ring over the links that a group of n uses (machine/laws.h, node_ceiling)
//   over nodes   a ring over all NICs of the group's ranks; for all_reduce and its halves, a tree
//                or two levels if that is faster, as libraries choose (machine/collective_laws.h)
//   latency      hops times that of the worst edge, so a group over more nodes takes longer, small
//                messages too
#pragma once

#include <optional>
#include <vector>

#include "ashlar/machine/collective_laws.h"
#include "ashlar/machine/profile.h"
#include "ashlar/sim/costs.h"

namespace ashlar::sim {

using machine::LinkAlgorithm;

class ClusterLinks {
 public:
  // ranks_per_node: rank r is on node r / ranks_per_node, one rank a device.
  // Errors   kConfig: the profile lacks a rate or a latency that is needed.
  ClusterLinks(const machine::Profile& profile, int num_ranks, int ranks_per_node);
  // programs: some of their ranks may not be simulated; then nothing is sent over their links, and
  // a group takes as much of the spine as the groups that it stands for.
  ClusterLinks(const machine::Profile& profile, const RankPrograms& programs, int ranks_per_node);

  void build(FlowSets& sets);
  // algorithm: of an all_reduce or one of its halves; empty: the fastest.
  std::vector<OperationPart> parts(const RankGroup& group, const RankOperation& operation,
                                   std::optional<LinkAlgorithm> algorithm = {}) const;
  OperationPart message(int from, int to, double bytes) const;

  int node_of(int rank) const { return rank / ranks_per_node_; }

 private:
  // A group, counted once.
  struct Members {
    const std::vector<int>& simulated;
    double num_ranks = 0, num_nodes = 0;
    double in_node = 0;   // ranks of a node, on average
    double in_first = 0;  // ranks on the node of the first
    double at_spine = 0;  // ranks whose traffic meets there, with those of groups alike
    bool across() const { return num_nodes > 1; }
  };
  Members members_of(const RankGroup& group) const;
  OperationPart over_links(const Members&, double hops, double bytes, double nic_share) const;
  machine::HopRates rates_of(const Members&) const;
  machine::LinkGroup links_of(const Members&) const;
  std::vector<OperationPart> two_levels(const Members&, machine::CollectiveOp op, double S) const;

  const int num_ranks_, ranks_per_node_;
  double ranks_for_each_ = 1;
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
