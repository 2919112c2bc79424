#include "ashlar/sim/links.h"

#include <algorithm>
#include <limits>

#include "ashlar/core/error.h"

namespace ashlar::sim {
namespace {

using machine::CollectiveOp;
using machine::LinkLaw;
using machine::pipelined_law;
using machine::ring_law;
using machine::tree_law;

double or_one(const machine::Profile& profile, std::string_view key) {
  const machine::Quantity* quantity = profile.find(key);
  return quantity ? quantity->value : 1;
}

}  // namespace

ClusterLinks::ClusterLinks(const machine::Profile& profile, int num_ranks, int ranks_per_node)
    : num_ranks_(num_ranks),
      ranks_per_node_(ranks_per_node),
      mesh_(profile.links == machine::NodeLinks::kMesh) {
  if (ranks_per_node > 1) {
    link_ = 1e9 * profile.need("topology.link").value * or_one(profile, "topology.link_usable");
    link_alpha_s_ = 1e-6 * profile.need("topology.link_latency").value;
  }
  if (num_ranks <= ranks_per_node) return;
  nic_ = 1e9 * profile.need("topology.nic").value * or_one(profile, "topology.nic_usable");
  nic_alpha_s_ = 1e-6 * profile.need("topology.nic_latency").value;
  if (const auto* over = profile.find("topology.oversubscription"); over && over->value > 1)
    spine_ = nic_ * double(num_ranks) / over->value;
}

ClusterLinks::ClusterLinks(const machine::Profile& profile, const RankPrograms& programs,
                           int ranks_per_node)
    : ClusterLinks(profile, int(programs.ranks.size()), ranks_per_node) {
  ranks_for_each_ = programs.ranks_for_each;
}

void ClusterLinks::build(FlowSets& sets) {
  for (auto* resources : {&device_, &nic_up_, &nic_down_}) resources->clear();
  const double peers = mesh_ ? double(std::max(1, ranks_per_node_ - 1)) : 1;
  for (int r = 0; r < num_ranks_; ++r) {
    device_.push_back(link_ > 0 ? sets.add_resource(link_ * peers) : -1);
    nic_up_.push_back(nic_ > 0 ? sets.add_resource(nic_) : -1);
    nic_down_.push_back(nic_ > 0 ? sets.add_resource(nic_) : -1);
  }
  if (spine_ > 0) spine_resource_ = sets.add_resource(spine_);
}

ClusterLinks::Members ClusterLinks::members_of(const RankGroup& group) const {
  const std::vector<int>& ranks = group.ranks;
  std::vector<bool> seen(size_t(node_of(num_ranks_ - 1)) + 1);
  Members members{.simulated = group.simulated, .num_ranks = double(ranks.size())};
  for (const int r : ranks) {
    const auto node = size_t(node_of(r));
    members.num_nodes += seen[node] ? 0 : 1;
    seen[node] = true;
    members.in_first += node_of(r) == node_of(ranks[0]) ? 1 : 0;
  }
  members.in_node = members.num_ranks / members.num_nodes;
  members.at_spine = ranks_for_each_ * double(group.simulated.size());
  return members;
}

machine::HopRates ClusterLinks::rates_of(const Members& m) const {
  const double node = link_ * (mesh_ ? (m.across() ? m.in_node : m.num_ranks) - 1 : 1);
  if (!m.across()) return {link_alpha_s_, node};
  const double nics = m.in_node * nic_;
  return {nic_alpha_s_, m.in_node > 1 && node > 0 ? std::min(node, nics) : nics};
}

// nic_share: the part of `bytes` that goes through the NIC of each rank, if there are any nodes to
// reach.
OperationPart ClusterLinks::over_links(const Members& m, double hops, double bytes,
                                       double nic_share) const {
  const machine::HopRates rates = rates_of(m);
  OperationPart part{.latency_s = hops * rates.alpha_s, .work = bytes};
  if (bytes <= 0) return part;
  part.limit = m.across() ? 0 : rates.bytes_a_second;
  part.links.reserve(3 * m.simulated.size() + 1);
  for (const int r : m.simulated) {
    if (m.in_node > 1) part.links.push_back({device_[size_t(r)], 1});
    if (!m.across() || nic_share <= 0) continue;
    part.links.push_back({nic_up_[size_t(r)], nic_share});
    part.links.push_back({nic_down_[size_t(r)], nic_share});
  }
  if (m.across() && spine_resource_ >= 0)
    part.links.push_back({spine_resource_, nic_share * m.at_spine});
  return part;
}

machine::LinkGroup ClusterLinks::links_of(const Members& m) const {
  const double node = link_ * (mesh_ ? m.in_node - 1 : 1);
  return {m.num_ranks, m.num_nodes, rates_of(m), {link_alpha_s_, node}, {nic_alpha_s_, nic_}};
}

std::vector<OperationPart> ClusterLinks::two_levels(const Members& m, CollectiveOp op,
                                                    double S) const {
  const machine::TwoLevelLaw law =
      machine::two_level_law(op, int64_t(m.in_node), int64_t(m.num_nodes), S);
  const Members of_a_node{
      .simulated = m.simulated, .num_ranks = m.in_first, .num_nodes = 1, .in_node = m.in_first};
  OperationPart in_node = over_links(of_a_node, law.node.hops, law.node.bytes, 0);
  in_node.links.clear();
  for (const int r : m.simulated) in_node.links.push_back({device_[size_t(r)], 1});
  OperationPart rails{.latency_s = law.rail.hops * nic_alpha_s_, .work = law.rail.bytes};
  for (const int r : m.simulated) {
    rails.links.push_back({nic_up_[size_t(r)], 1});
    rails.links.push_back({nic_down_[size_t(r)], 1});
  }
  if (spine_resource_ >= 0) rails.links.push_back({spine_resource_, m.at_spine});
  std::vector<OperationPart> parts;
  if (op != CollectiveOp::kAllGather) parts.push_back(in_node);
  parts.push_back(rails);
  if (op != CollectiveOp::kReduceScatter) parts.push_back(in_node);
  return parts;
}

std::vector<OperationPart> ClusterLinks::parts(const RankGroup& group,
                                               const RankOperation& operation,
                                               std::optional<LinkAlgorithm> algorithm) const {
  const Members m = members_of(group);
  const int64_t n = int64_t(group.ranks.size());
  const double S = double(operation.bytes);
  const machine::HopRates rates = rates_of(m);
  const auto over = [&](const LinkLaw& law, double nic_share) {
    return std::vector{over_links(m, law.hops, law.bytes, nic_share)};
  };
  switch (operation.op) {
    case CollectiveOp::kAllToAll:
    case CollectiveOp::kAllToAllV:
      return over(ring_law(operation.op, n, S), (double(n) - m.in_node) / double(n - 1));
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kReduce:
      return over(pipelined_law(n, S, rates.alpha_s, rates.bytes_a_second), 1 / m.in_node);
    default: {
      const machine::LinkGroup links = links_of(m);
      if (!algorithm) algorithm = machine::fastest_law(operation.op, links, S).algorithm;
      if (*algorithm == LinkAlgorithm::kTwoLevel && links.has_levels())
        return two_levels(m, operation.op, S);
      return over(
          *algorithm == LinkAlgorithm::kTree ? tree_law(n, S) : ring_law(operation.op, n, S),
          1 / m.in_node);
    }
  }
}

OperationPart ClusterLinks::message(int from, int to, double bytes) const {
  if (node_of(from) == node_of(to))
    return {.latency_s = link_alpha_s_,
            .work = bytes,
            .limit = link_,
            .links = {{device_[size_t(from)], 1}}};
  OperationPart part{.latency_s = nic_alpha_s_,
                     .work = bytes,
                     .links = {{nic_up_[size_t(from)], 1}, {nic_down_[size_t(to)], 1}}};
  if (spine_resource_ >= 0) part.links.push_back({spine_resource_, ranks_for_each_});
  return part;
}

double alone_s(const OperationPart& part, const FlowSets& sets) {
  double rate = part.limit > 0 ? part.limit : std::numeric_limits<double>::infinity();
  for (const ResourceUse& use : part.links)
    rate = std::min(rate, sets.capacity(use.resource) / use.weight);
  return part.latency_s + (part.work > 0 ? part.work / rate : 0);
}

}  // namespace ashlar::sim
