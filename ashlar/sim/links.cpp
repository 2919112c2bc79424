#include "ashlar/sim/links.h"

#include <algorithm>
#include <limits>
#include <set>

#include "ashlar/core/error.h"
#include "ashlar/machine/collective_laws.h"

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

int ClusterLinks::num_nodes(const std::vector<int>& ranks) const {
  std::set<int> nodes;
  for (const int r : ranks) nodes.insert(node_of(r));
  return int(nodes.size());
}

double ClusterLinks::ranks_of_a_node(const std::vector<int>& ranks) const {
  return double(ranks.size()) / num_nodes(ranks);
}

ClusterLinks::Rates ClusterLinks::rates_of(const std::vector<int>& ranks) const {
  const double n = double(ranks.size()), nodes = num_nodes(ranks), g = n / nodes;
  const double node = link_ * (mesh_ ? (nodes > 1 ? g : n) - 1 : 1);
  if (nodes == 1) return {link_alpha_s_, node};
  return {nic_alpha_s_, g > 1 && node > 0 ? std::min(node, g * nic_) : g * nic_};
}

// nic_share: the part of `bytes` that goes through the NIC of each rank, if there are any nodes to
// reach.
OperationPart ClusterLinks::over_links(const std::vector<int>& ranks, double hops, double bytes,
                                       double nic_share) const {
  const Rates rates = rates_of(ranks);
  OperationPart part{.latency_s = hops * rates.alpha_s, .work = bytes};
  if (bytes <= 0) return part;
  const bool across = num_nodes(ranks) > 1, within = ranks_of_a_node(ranks) > 1;
  part.limit = across ? 0 : rates.bytes_a_second;
  for (const int r : ranks) {
    if (within) part.links.push_back({device_[size_t(r)], 1});
    if (!across || nic_share <= 0) continue;
    part.links.push_back({nic_up_[size_t(r)], nic_share});
    part.links.push_back({nic_down_[size_t(r)], nic_share});
  }
  if (across && spine_resource_ >= 0)
    part.links.push_back({spine_resource_, nic_share * double(ranks.size())});
  return part;
}

std::vector<OperationPart> ClusterLinks::two_levels(const std::vector<int>& ranks, double S) const {
  const double g = ranks_of_a_node(ranks), nodes = num_nodes(ranks);
  const LinkLaw inner = ring_law(CollectiveOp::kReduceScatter, int64_t(g), S);
  const LinkLaw outer = ring_law(CollectiveOp::kAllReduce, int64_t(nodes), S / g);
  std::vector<int> node_ranks;
  for (const int r : ranks)
    if (node_of(r) == node_of(ranks[0])) node_ranks.push_back(r);
  OperationPart in_node = over_links(node_ranks, inner.hops, inner.bytes, 0);
  in_node.links.clear();
  for (const int r : ranks) in_node.links.push_back({device_[size_t(r)], 1});
  OperationPart rails{.latency_s = outer.hops * nic_alpha_s_, .work = outer.bytes};
  for (const int r : ranks) {
    rails.links.push_back({nic_up_[size_t(r)], 1});
    rails.links.push_back({nic_down_[size_t(r)], 1});
  }
  if (spine_resource_ >= 0) rails.links.push_back({spine_resource_, double(ranks.size())});
  return {in_node, rails, in_node};
}

std::vector<OperationPart> ClusterLinks::parts(const std::vector<int>& ranks,
                                               const RankOperation& operation,
                                               std::optional<LinkAlgorithm> algorithm) const {
  const int64_t n = int64_t(ranks.size());
  const double S = double(operation.bytes);
  const Rates rates = rates_of(ranks);
  const double g = ranks_of_a_node(ranks);
  switch (operation.op) {
    case CollectiveOp::kAllToAll:
    case CollectiveOp::kAllToAllV: {
      const LinkLaw law = ring_law(operation.op, n, S);
      return {over_links(ranks, law.hops, law.bytes, (double(n) - g) / double(n - 1))};
    }
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kReduce: {
      const LinkLaw law = pipelined_law(n, S, rates.alpha_s, rates.bytes_a_second);
      return {over_links(ranks, law.hops, law.bytes, 1 / g)};
    }
    case CollectiveOp::kAllReduce: {
      const LinkLaw ring = ring_law(operation.op, n, S), tree = tree_law(n, S);
      const bool levels = num_nodes(ranks) > 1 && g > 1 && g == double(int64_t(g));
      if (!algorithm) {
        const double ring_s = ring.time_s(rates.alpha_s, rates.bytes_a_second),
                     tree_s = tree.time_s(rates.alpha_s, rates.bytes_a_second);
        algorithm = tree_s < ring_s ? LinkAlgorithm::kTree : LinkAlgorithm::kRing;
        if (levels) {
          const LinkLaw inner = ring_law(CollectiveOp::kReduceScatter, int64_t(g), S);
          const LinkLaw outer = ring_law(CollectiveOp::kAllReduce, num_nodes(ranks), S / g);
          const double node = link_ * (mesh_ ? g - 1 : 1);
          if (2 * inner.time_s(link_alpha_s_, node) + outer.time_s(nic_alpha_s_, nic_) <
              std::min(ring_s, tree_s))
            algorithm = LinkAlgorithm::kTwoLevel;
        }
      }
      if (*algorithm == LinkAlgorithm::kTwoLevel && levels) return two_levels(ranks, S);
      const LinkLaw& law = *algorithm == LinkAlgorithm::kTree ? tree : ring;
      return {over_links(ranks, law.hops, law.bytes, 1 / g)};
    }
    default: {
      const LinkLaw law = ring_law(operation.op, n, S);
      return {over_links(ranks, law.hops, law.bytes, 1 / g)};
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
  if (spine_resource_ >= 0) part.links.push_back({spine_resource_, 1});
  return part;
}

double alone_s(const OperationPart& part, const FlowSets& sets) {
  double rate = part.limit > 0 ? part.limit : std::numeric_limits<double>::infinity();
  for (const ResourceUse& use : part.links)
    rate = std::min(rate, sets.capacity(use.resource) / use.weight);
  return part.latency_s + (part.work > 0 ? part.work / rate : 0);
}

}  // namespace ashlar::sim
