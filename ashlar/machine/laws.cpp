#include "ashlar/machine/laws.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::machine {
namespace {

constexpr std::array<std::string_view, 11> kCollectiveNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all",   "all_to_allv", "gather",
    "scatter",    "broadcast",  "reduce",         "send_receive", "barrier"};

}  // namespace

std::string_view to_string(CollectiveOp op) {
  return kCollectiveNames[size_t(op)];
}

CollectiveOp collective_of(std::string_view name) {
  for (size_t i = 0; i < kCollectiveNames.size(); ++i)
    if (kCollectiveNames[i] == name) return CollectiveOp(i);
  const std::vector<std::string> known(kCollectiveNames.begin(), kCollectiveNames.end());
  ASHLAR_FAIL(kConfig, "there is no collective '{}'{}", printable(name), suggestion(name, known));
}

double bus_factor(CollectiveOp op, int64_t n) {
  const double others = double(n - 1) / double(n);
  switch (op) {
    case CollectiveOp::kAllReduce:
      return 2 * others;
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllToAll:
    case CollectiveOp::kAllToAllV:
    case CollectiveOp::kGather:
    case CollectiveOp::kScatter:
      return others;
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kReduce:
    case CollectiveOp::kSendReceive:
    case CollectiveOp::kBarrier:
      break;
  }
  return 1;
}

double node_ceiling(const Cluster& cluster, int64_t n) {
  return cluster.links == NodeLinks::kMesh ? double(n - 1) * cluster.link_gbps : cluster.link_gbps;
}

double cluster_ceiling(const Cluster& cluster, CollectiveOp op, int64_t nodes) {
  if (nodes == 1) return node_ceiling(cluster, cluster.devices);
  const double g = double(cluster.devices), n = g * double(nodes);
  if (op == CollectiveOp::kAllToAll || op == CollectiveOp::kAllToAllV)
    return cluster.nic_gbps * (n - 1) / (n - g);
  return g * cluster.nic_gbps;
}

double two_level_ceiling(const Cluster& cluster, int64_t nodes) {
  if (nodes == 1) return node_ceiling(cluster, cluster.devices);
  const double g = double(cluster.devices), n = g * double(nodes), across = double(nodes);
  return g * cluster.nic_gbps * ((n - 1) / n) / ((across - 1) / across);
}

int64_t hops(CollectiveOp op, int64_t n) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return 2 * (n - 1);
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllToAll:
    case CollectiveOp::kAllToAllV:
    case CollectiveOp::kGather:
    case CollectiveOp::kScatter:
      return n - 1;
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kReduce:
    case CollectiveOp::kBarrier:
      return std::bit_width(uint64_t(n - 1));
    case CollectiveOp::kSendReceive:
      break;
  }
  return n > 1 ? 1 : 0;
}

double latency_us(const Cluster& cluster, CollectiveOp op, int64_t nodes) {
  const double edge_us = nodes > 1 ? std::max(cluster.link_us, cluster.nic_us) : cluster.link_us;
  return double(hops(op, nodes * cluster.devices)) * edge_us;
}

double collective_us(const Cluster& cluster, CollectiveOp op, int64_t nodes, double bytes) {
  const int64_t n = nodes * cluster.devices;
  const double gbps = cluster_ceiling(cluster, op, nodes);
  return latency_us(cluster, op, nodes) + bytes * bus_factor(op, n) / gbps * 1e-3;
}

double scatter_factor(double faults_a_sample, double page, double tokens, double bytes) {
  return 1 + faults_a_sample * page / (tokens * bytes);
}

double rows_for(double flop, double K, double N) {
  return flop / (2 * K * N);
}

}  // namespace ashlar::machine
