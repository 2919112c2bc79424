#include "ashlar/sizing/bucket_bytes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>

#include "ashlar/core/error.h"
#include "ashlar/machine/laws.h"

namespace ashlar::sizing {
namespace {

using machine::CollectiveOp;

constexpr double kSaturated = 0.9;  // share of the largest bandwidth
constexpr size_t kFewestSizes = 4;  // of a curve, that show where it gets flat
constexpr double kBucketUnit = double(64 << 10), kLargestBucket = double(1 << 30);

constexpr const char* kMeasureCommand = "ashlar bench collectives --profile FILE";

// A rate or latency of links, which the law needs where no curve was measured.
double of_links(const machine::Profile& profile, const char* key) {
  const machine::Quantity* found = profile.find(key);
  ASHLAR_REQUIRE(found && found->value > 0, kConfig,
                 "parallel.bucket_bytes is auto, but the profile {} has no curve of "
                 "reduce_scatter over {} sizes, nor {} for a law in its place; measure one: {}",
                 profile.name, kFewestSizes, key, kMeasureCommand);
  return found->value;
}

double usable_share(const machine::Profile& profile, const char* key) {
  const machine::Quantity* found = profile.find(key);
  return found ? found->value : 1;
}

// The first size near the peak of bandwidth, which falls again where messages outgrow a cache.
double first_saturated_size(std::span<const machine::CurvePoint> points) {
  double peak = 0, first = std::numeric_limits<double>::infinity();
  for (const machine::CurvePoint& point : points)
    peak = std::max(peak, point.size / point.median_us);
  for (const machine::CurvePoint& point : points)
    if (point.size / point.median_us >= kSaturated * peak) first = std::min(first, point.size);
  return first;
}

}  // namespace

SaturatingSizes::SaturatingSizes(const machine::Profile& profile, int64_t ranks_per_node)
    : profile_(profile), ranks_per_node_(ranks_per_node) {
  for (const machine::CollectiveCurve& curve : profile.collectives) {
    if (curve.op != CollectiveOp::kReduceScatter || curve.points.size() < kFewestSizes) continue;
    const auto bytes = machine::saturating_size(curve.points, kSaturated);
    curves_.push_back({curve.ranks, bytes ? *bytes : first_saturated_size(curve.points)});
  }
}

double SaturatingSizes::by_links(int64_t ranks, int64_t stride) const {
  const double node =
      ranks_per_node_ > 0 ? double(ranks_per_node_) : of_links(profile_, "node.devices");
  const int64_t inside = std::clamp<int64_t>(int64_t(node) / stride, 1, ranks);
  machine::Cluster cluster{.links = profile_.links, .devices = inside};
  double hop_us = 0, gbps = HUGE_VAL;
  if (inside > 1) {
    cluster.link_gbps =
        of_links(profile_, "topology.link") * usable_share(profile_, "topology.link_usable");
    gbps = machine::node_ceiling(cluster, inside);
    hop_us = of_links(profile_, "topology.link_latency");
  }
  if (inside < ranks) {
    const double nic_gbps =
        of_links(profile_, "topology.nic") * usable_share(profile_, "topology.nic_usable");
    gbps = std::min(gbps, double(inside) * nic_gbps);
    hop_us = std::max(hop_us, of_links(profile_, "topology.nic_latency"));
  }
  const double alpha_us = double(machine::hops(CollectiveOp::kReduceScatter, ranks)) * hop_us;
  return machine::saturating_size(
      alpha_us, gbps, machine::bus_factor(CollectiveOp::kReduceScatter, ranks), kSaturated);
}

int64_t SaturatingSizes::bucket_bytes(int64_t ranks, int64_t stride) const {
  ASHLAR_REQUIRE(!profile_.name.empty(), kConfig,
                 "parallel.bucket_bytes is auto, but train.machine names no profile to take it "
                 "from; name one that {} has measured, or choose a number",
                 kMeasureCommand);
  const auto nearest =
      std::min_element(curves_.begin(), curves_.end(), [&](const Measured& a, const Measured& b) {
        return std::abs(a.ranks - ranks) < std::abs(b.ranks - ranks);
      });
  const double bytes = nearest == curves_.end() ? by_links(ranks, stride) : nearest->bytes;
  const double units = std::max(1.0, std::ceil(bytes / kBucketUnit));
  return int64_t(std::min(kLargestBucket, units * kBucketUnit));
}

Recipe with_bucket_bytes(Recipe recipe, int64_t num_ranks, const SaturatingSizes& sizes) {
  if (recipe.parallel.bucket_bytes != kAutoBucketBytes) return recipe;
  const ParallelSpec p = resolve_parallel(recipe, num_ranks);
  const int64_t data_ranks = p.dp * p.sequence_ranks();
  recipe.parallel.bucket_bytes =
      data_ranks == 1 ? ParallelSpec().bucket_bytes : sizes.bucket_bytes(data_ranks, p.tp);
  return recipe;
}

}  // namespace ashlar::sizing
