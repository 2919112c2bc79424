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

}  // namespace ashlar::machine
