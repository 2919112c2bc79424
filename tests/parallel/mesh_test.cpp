#include "ashlar/parallel/mesh.h"

#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"

namespace ashlar::parallel {
namespace {

std::vector<int> ranks_of(const comm::Group& group) {
  return {group.world_ranks().begin(), group.world_ranks().end()};
}

TEST(Mesh, TpVariesFastestThenCpThenDp) {
  const Mesh mesh{{1, 2, 3, 2}};
  EXPECT_EQ(mesh.num_ranks(), 12);
  int rank = 0;
  for (int dp = 0; dp < 2; ++dp)
    for (int cp = 0; cp < 3; ++cp)
      for (int tp = 0; tp < 2; ++tp, ++rank) {
        EXPECT_EQ(mesh.coordinates(rank), (std::array{0, dp, cp, tp}));
        EXPECT_EQ(mesh.number_within(rank, std::array{Axis::kCp, Axis::kDp}), dp * 3 + cp);
      }
}

TEST(Mesh, GroupsAreTheRanksAlongTheirAxes) {
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(7, 12, {}, allocator);  // dp 1, cp 0, tp 1
  const Groups groups(world.group(), Mesh{{1, 2, 3, 2}});
  EXPECT_EQ(ranks_of(groups.tp()), (std::vector{6, 7}));
  EXPECT_EQ(ranks_of(groups.cp()), (std::vector{7, 9, 11}));
  EXPECT_EQ(ranks_of(groups.data()), (std::vector{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(groups.model().size(), 12);
  EXPECT_EQ(groups.data().rank(), 3);
  EXPECT_EQ(groups.coordinate(Axis::kDp), 1);
}

// Staging memory tells how many lanes a rank has.
TEST(Mesh, WhatComputeWaitsForHasLanesOfItsOwnBesideBulk) {
  const auto num_lanes = [](const Mesh& mesh) {
    Allocator allocator(Device::kMeta);
    comm::RecordingWorld world(0, mesh.num_ranks(), {}, allocator);
    const Groups groups(world.group(), mesh);
    return allocator.counts().total.current_bytes / comm::Options{}.staging_bytes;
  };
  EXPECT_EQ(num_lanes({{1, 1, 1, 1}}), 0);
  EXPECT_EQ(num_lanes({{1, 2, 1, 1}}), 1);
  EXPECT_EQ(num_lanes({{1, 1, 1, 2}}), 1);  // no bulk
  EXPECT_EQ(num_lanes({{1, 1, 2, 1}}), 2);
  EXPECT_EQ(num_lanes({{1, 2, 1, 2}}), 2);
  EXPECT_EQ(num_lanes({{1, 2, 2, 2}}), 3);
}

}  // namespace
}  // namespace ashlar::parallel
