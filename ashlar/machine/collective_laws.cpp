#include "ashlar/machine/collective_laws.h"

#include <algorithm>
#include <cmath>

namespace ashlar::machine {

LinkLaw ring_law(CollectiveOp op, int64_t n, double S) {
  if (op == CollectiveOp::kSendReceive) return {1, S};
  const double steps = op == CollectiveOp::kAllReduce ? 2 : 1;
  const double others = double(n - 1);
  if (op == CollectiveOp::kBarrier) return {2 * std::ceil(std::log2(double(n))), 0};
  return {steps * others, steps * others / double(n) * S};
}

LinkLaw tree_law(int64_t n, double S) {
  return {2 * std::log2(double(n)), 2 * S};
}

LinkLaw pipelined_law(int64_t n, double S, double alpha_s, double bytes_a_second) {
  double pieces = 1;
  if (alpha_s > 0 && n > 2)
    pieces = std::max(1.0, std::round(std::sqrt(double(n - 2) * S / (alpha_s * bytes_a_second))));
  const double hops = double(n - 2) + pieces;
  return {hops, hops / pieces * S};
}

TwoLevelLaw two_level_law(CollectiveOp op, int64_t in_node, int64_t num_nodes, double S) {
  return {.node = ring_law(CollectiveOp::kReduceScatter, in_node, S),
          .rail = ring_law(op, num_nodes, S / double(in_node)),
          .num_in_node = op == CollectiveOp::kAllReduce ? 2 : 1};
}

bool LinkGroup::has_levels() const {
  const double in_node = num_ranks / num_nodes;
  return num_nodes > 1 && in_node > 1 && in_node == std::floor(in_node);
}

FastestLaw fastest_law(CollectiveOp op, const LinkGroup& group, double S) {
  const auto time_s = [](const LinkLaw& law, const HopRates& rates) {
    return law.time_s(rates.alpha_s, rates.bytes_a_second);
  };
  const int64_t n = int64_t(group.num_ranks), num_nodes = int64_t(group.num_nodes);
  FastestLaw best{LinkAlgorithm::kRing, time_s(ring_law(op, n, S), group.flat)};
  const auto consider = [&](LinkAlgorithm algorithm, double s) {
    if (s < best.time_s) best = {algorithm, s};
  };
  const bool reduces = op == CollectiveOp::kAllReduce;
  if (reduces) consider(LinkAlgorithm::kTree, time_s(tree_law(n, S), group.flat));
  const bool halves = op == CollectiveOp::kReduceScatter || op == CollectiveOp::kAllGather;
  if (!group.has_levels() || !(reduces || halves)) return best;
  const TwoLevelLaw law = two_level_law(op, n / num_nodes, num_nodes, S);
  consider(LinkAlgorithm::kTwoLevel,
           law.num_in_node * time_s(law.node, group.node) + time_s(law.rail, group.rail));
  return best;
}

}  // namespace ashlar::machine
