// The size of buckets that a recipe leaves to the machine, against the law's closed form.
#include "ashlar/sizing/bucket_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ashlar/core/error.h"
#include "tests/support/errors.h"

namespace ashlar::sizing {
namespace {

using machine::Profile;
using testing_support::message_of;

Recipe recipe_with(std::vector<std::string> keys) {
  keys.insert(keys.begin(), {"train.global_batch=4096", "parallel.bucket_bytes=auto"});
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", keys);
}

int64_t bytes_for(const Profile& profile, int64_t num_ranks, std::vector<std::string> keys = {},
                  int64_t ranks_per_node = 0) {
  const Recipe recipe = recipe_with(std::move(keys));
  return with_bucket_bytes(recipe, num_ranks, SaturatingSizes(profile, ranks_per_node))
      .parallel.bucket_bytes;
}

std::string refusal(const Profile& profile, int64_t num_ranks) {
  return message_of(ErrorKind::kConfig, [&] { bytes_for(profile, num_ranks); });
}

// T = alpha + k S / B at the powers of two up to 1 GiB.
machine::CollectiveCurve curve_of(machine::CollectiveOp op, int64_t ranks, double alpha_us,
                                  double gbps) {
  machine::CollectiveCurve curve;
  curve.op = op;
  curve.ranks = ranks;
  for (double size = 1024; size <= double(1 << 30); size *= 2) {
    const double us = alpha_us + curve.factor() * size / (1e3 * gbps);
    curve.points.push_back({size, us, us, us});
  }
  return curve;
}

Profile mi300x() {
  return machine::parse_profile(machine::shipped_text("mi300x-pollara"), "mi300x-pollara");
}

TEST(BucketBytes, AreWhereTheNearestMeasuredCurveIsSaturated) {
  using machine::CollectiveOp;
  Profile profile;
  profile.name = "measured";
  profile.collectives = {curve_of(CollectiveOp::kAllReduce, 4, 1000, 1),
                         curve_of(CollectiveOp::kReduceScatter, 2, 10, 1),
                         curve_of(CollectiveOp::kReduceScatter, 8, 10, 100)};
  // 0.9 / (1 - 0.9) alpha B / k: 180,000 bytes on 2 ranks, 10,285,714 on 8; then the next point.
  EXPECT_EQ(bytes_for(profile, 2), 1 << 18);
  EXPECT_EQ(bytes_for(profile, 4), 1 << 18);
  EXPECT_EQ(bytes_for(profile, 8), 1 << 24);
  EXPECT_EQ(bytes_for(profile, 512), 1 << 24);
  // The data group counts, whatever other axes there are.
  EXPECT_EQ(bytes_for(profile, 8, {"parallel.tp=2", "parallel.pp=2"}), 1 << 18);
  EXPECT_EQ(bytes_for(profile, 8, {"parallel.cp=4"}), 1 << 24);
}

TEST(BucketBytes, FollowTheLawOfTheLinksWithoutACurve) {
  // 9 x 7 x 5 us x 333,760 B/us / (7/8) = 120,153,600: a mesh of 8 with links of 64 GB/s x 0.745.
  EXPECT_EQ(bytes_for(mi300x(), 8), 1834 * 65536);
  // 9 x 15 x 10 us x 333,760 B/us / (15/16) = 480,614,400 on two nodes.
  EXPECT_EQ(bytes_for(mi300x(), 16), 7334 * 65536);
  // 9 x 10 us x 46,250 B/us / (1/2) = 8,325,000: one device of each of two nodes.
  EXPECT_EQ(bytes_for(mi300x(), 16, {"parallel.tp=4", "parallel.pp=2"}, 4), 128 * 65536);
}

TEST(BucketBytes, StayInTheirLimits) {
  EXPECT_EQ(bytes_for(mi300x(), 1024), 1 << 30);
  Profile profile;
  profile.name = "fast";
  profile.collectives = {curve_of(machine::CollectiveOp::kReduceScatter, 2, 0.001, 1)};
  EXPECT_EQ(bytes_for(profile, 2), 1 << 16);
}

TEST(BucketBytes, ThatARecipeStatesStay) {
  Recipe recipe = recipe_with({"parallel.bucket_bytes=5000"});
  EXPECT_EQ(with_bucket_bytes(recipe, 8, SaturatingSizes(Profile())), recipe);
  // A single data rank sums nothing, and needs no profile.
  EXPECT_EQ(bytes_for(Profile(), 1), ParallelSpec().bucket_bytes);
  EXPECT_EQ(bytes_for(Profile(), 2, {"parallel.tp=2"}), ParallelSpec().bucket_bytes);
}

TEST(BucketBytes, AreRefusedWithTheCommandThatMeasures) {
  EXPECT_EQ(refusal(Profile(), 2),
            "parallel.bucket_bytes is auto, but train.machine names no profile to take it from; "
            "name one that ashlar bench collectives --profile FILE has measured, or choose a "
            "number");
  Profile profile = mi300x();
  profile.quantities.erase("topology.nic_latency");
  EXPECT_EQ(bytes_for(profile, 8), 1834 * 65536);  // no NIC is used
  EXPECT_EQ(refusal(profile, 16),
            "parallel.bucket_bytes is auto, but the profile mi300x-pollara has no curve of "
            "reduce_scatter over 4 sizes, nor topology.nic_latency for a law in its place; measure "
            "one: ashlar "
            "bench collectives --profile FILE");
  machine::CollectiveCurve curve = curve_of(machine::CollectiveOp::kReduceScatter, 2, 10, 1);
  profile.collectives = {curve};
  EXPECT_EQ(bytes_for(profile, 16), 1 << 18);
  // Three sizes do not show where bandwidth gets flat.
  profile.collectives[0].points.resize(3);
  EXPECT_NE(refusal(profile, 16).find("over 4 sizes"), std::string::npos);
  // A layout that the ranks cannot share is refused before.
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { bytes_for(profile, 3, {"parallel.tp=2"}); })
                .find("3 ranks, but "),
            std::string::npos);
}

// Messages that outgrow a cache move at half the rate.
TEST(BucketBytes, ABandwidthThatFallsAgainCountsAtItsPeak) {
  Profile profile;
  profile.name = "caches";
  machine::CollectiveCurve curve = curve_of(machine::CollectiveOp::kReduceScatter, 2, 10, 6);
  for (machine::CurvePoint& point : curve.points)
    if (point.size > double(1 << 20)) point.median_us *= 2;
  profile.collectives = {curve};
  // 10 us + size / (12 GB/s): 97.4 us at 1 MiB, 53.7 at 512 KiB, which has 91 % of its bandwidth.
  EXPECT_EQ(bytes_for(profile, 2), 512 << 10);
}
}  // namespace
}  // namespace ashlar::sizing
