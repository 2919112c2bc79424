#include "ashlar/sim/operation_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::sim {
namespace {

using machine::CollectiveOp;

bool sums(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter ||
         op == CollectiveOp::kReduce;
}

}  // namespace

double even_received(CollectiveOp op, int64_t n, double S) {
  if (op == CollectiveOp::kReduce) op = CollectiveOp::kAllReduce;  // what the root receives
  return op == CollectiveOp::kBarrier ? 0 : machine::bus_factor(op, n) * S;
}

double OperationTimes::Curve::time_us(double bytes) const {
  const auto& points = curve->points;
  if (const auto us = machine::interpolated_us(points, bytes)) return *us;
  const auto smaller = [](const auto& a, const auto& b) { return a.size < b.size; };
  const auto& least = *std::min_element(points.begin(), points.end(), smaller);
  const auto& most = *std::max_element(points.begin(), points.end(), smaller);
  if (bytes <= least.size) return least.median_us;
  // Beyond the largest size as the law grows, from the largest point on.
  if (fit && fit->gbps() > 0)
    return most.median_us + curve->factor() * (bytes - most.size) / fit->gbps() * 1e-3;
  return most.median_us * bytes / std::max(1.0, most.size);
}

OperationTimes::OperationTimes(const machine::Profile& profile, std::string_view engine)
    : profile_(profile), engine_(engine) {
  std::map<std::string, int> num_curves;
  for (const auto& curve : profile.collectives)
    if (!curve.points.empty()) ++num_curves[curve.engine];
  if (engine_.empty())
    for (const auto& [name, num] : num_curves)
      if (engine_.empty() || num > num_curves[engine_]) engine_ = name;
  if (!engine.empty()) {
    std::vector<std::string> known;
    for (const auto& [name, num] : num_curves) known.push_back(name);
    ASHLAR_REQUIRE(num_curves.contains(engine_), kConfig,
                   "the profile {} has no curve of the engine '{}'{}", profile.name,
                   printable(engine_), suggestion(engine_, known));
  }
  for (const auto& curve : profile.collectives) {
    if (curve.engine != engine_ || curve.points.empty()) continue;
    Curve& kept = curves_.emplace_back(Curve{&curve, machine::fit(curve.points, curve.factor())});
    kept.floor_us = curve.points[0].median_us;
    for (const auto& point : curve.points) kept.floor_us = std::min(kept.floor_us, point.median_us);
  }
}

// The curve of the same type, and of as many groups at once, before others.
const OperationTimes::Curve* OperationTimes::find(CollectiveOp op, DType dtype, int64_t num_ranks,
                                                  int64_t num_groups) const {
  const Curve* best = nullptr;
  std::tuple<int64_t, bool, int64_t> least;
  for (const Curve& c : curves_) {
    if (c.curve->op != op) continue;
    const std::tuple far{std::abs(c.curve->ranks - num_ranks),
                         c.curve->dtype != name_of(dtype) && c.curve->dtype != "any",
                         std::abs(c.curve->groups - num_groups)};
    if (best && far >= least) continue;
    best = &c;
    least = far;
  }
  return best;
}

OperationTime OperationTimes::of(CollectiveOp op, DType dtype, int64_t num_ranks,
                                 int64_t num_groups, double bytes) const {
  std::vector<CollectiveOp> near = {op};
  if (op == CollectiveOp::kAllToAll) near.push_back(CollectiveOp::kAllToAllV);
  if (op == CollectiveOp::kBarrier) near.push_back(CollectiveOp::kAllReduce);
  for (const CollectiveOp other :
       {CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce, CollectiveOp::kAllGather,
        CollectiveOp::kSendReceive, CollectiveOp::kAllToAll})
    if (other != op && sums(other) == sums(op)) near.push_back(other);
  for (const CollectiveOp other : near) {
    const Curve* curve = find(other, dtype, num_ranks, num_groups);
    if (!curve) continue;
    const int64_t n = curve->curve->ranks;
    const double received = even_received(op, num_ranks, bytes);
    // The size at which a rank of the curve receives as much.
    const double one = even_received(other, n, 1);
    const double size = one > 0 ? received / one : 0;
    const double us = std::max(curve->time_us(size), curve->floor_us);
    const double fixed_us = std::min(us, curve->floor_us);
    const double others = double(num_ranks - 1) / double(n - 1);
    return {.fixed_s = 1e-6 * fixed_us * others,
            .s_per_received = received > 0 ? 1e-6 * (us - fixed_us) / received : 0,
            .source = other == op && n == num_ranks ? TimeSource::kExact : TimeSource::kNeighbour};
  }
  ASHLAR_FAIL(kConfig,
              "the profile {} has no curve of {} or a like operation of the engine {}: "
              "ashlar bench collectives --profile FILE measures it",
              profile_.name, machine::to_string(op), engine_.empty() ? "(none)" : engine_);
}

}  // namespace ashlar::sim
