// Collectives over links: the closed formulas, and replays that take exactly their times.
#include "ashlar/sim/links.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "ashlar/machine/collective_laws.h"
#include "ashlar/sim/program_builder.h"
#include "ashlar/sim/replay.h"
#include "tests/sim/expect_error.h"

namespace ashlar::sim {
namespace {

using testing_support::expect_error;

using machine::CollectiveOp;
using machine::pipelined_law;
using machine::ring_law;
using machine::tree_law;

machine::Quantity number(double value, const char* unit) {
  return {value, unit, machine::Origin::kMeasured, "", "", 0};
}

// Nodes of 8 devices behind a switch: 5 us, 50 GB/s; NICs of 10 us, 25 GB/s.
machine::Profile cluster() {
  machine::Profile profile;
  profile.name = "cluster";
  profile.set("node.devices", number(8, "1"));
  profile.set("device.memory", number(1e9, "B"));
  profile.set("topology.link", number(50, "GB/s"));
  profile.set("topology.link_latency", number(5, "us"));
  profile.set("topology.nic", number(25, "GB/s"));
  profile.set("topology.nic_latency", number(10, "us"));
  return profile;
}

// The time of operations of all ranks, each posted at once on a lane of its own.
double time_s(const machine::Profile& profile, int num_ranks,
              const std::vector<std::pair<CollectiveOp, std::vector<int>>>& operations,
              int64_t bytes, std::optional<LinkAlgorithm> algorithm = {}) {
  ProgramBuilder builder(num_ranks);
  for (size_t i = 0; i < operations.size(); ++i)
    for (const int r : operations[i].second) {
      const int lane = builder.lane(r, fmt::format("lane {}", i));
      builder.post(r,
                   {.op = operations[i].first,
                    .lane = int16_t(lane),
                    .group = builder.group(fmt::format("group {}", i), operations[i].second),
                    .number = 0,
                    .bytes = bytes},
                   1);
    }
  for (size_t i = 0; i < operations.size(); ++i)
    for (const int r : operations[i].second)
      builder.wait(r, builder.lane(r, fmt::format("lane {}", i)), 1);
  for (int r = 0; r < num_ranks; ++r) builder.end_step(r);
  const RankPrograms programs = builder.finish();
  struct LinkCosts : Costs {
    void build(FlowSets& sets) override { links->build(sets); }
    double kernel_s(int, const ProgramEvent&) const override { return 0; }
    std::vector<OperationPart> parts(const RankGroup& group,
                                     const RankOperation& operation) const override {
      return links->parts(group, operation, algorithm);
    }
    OperationPart message(int, int, int64_t) const override { return {}; }
    std::optional<ClusterLinks> links;
    std::optional<LinkAlgorithm> algorithm;
  } costs;
  costs.links.emplace(profile, num_ranks, 8);
  costs.algorithm = algorithm;
  const Replayed replayed = replay(programs, costs);
  EXPECT_EQ(replayed.problem, "");
  return replayed.step_s[0];
}

std::vector<int> first(int n, int begin = 0, int stride = 1) {
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ranks[size_t(i)] = begin + i * stride;
  return ranks;
}

constexpr int64_t kMiB64 = 64 << 20;

// n = 8, S = 64 MiB, alpha = 5 us, B = 50 GB/s.
TEST(CollectiveLaws, TimesOfTheFormulas) {
  EXPECT_NEAR(ring_law(CollectiveOp::kAllReduce, 8, kMiB64).time_s(5e-6, 50e9), 2.41881e-3, 5e-9);
  EXPECT_NEAR(ring_law(CollectiveOp::kReduceScatter, 8, kMiB64).time_s(5e-6, 50e9), 1.20941e-3,
              5e-9);
  EXPECT_NEAR(tree_law(8, kMiB64).time_s(5e-6, 50e9), 2.71435e-3, 5e-9);
  EXPECT_DOUBLE_EQ(ring_law(CollectiveOp::kSendReceive, 2, 1e6).time_s(5e-6, 50e9), 25e-6);
  // (n - 2 + c)(alpha + S / (c B)) for the best c: 4 ranks, S = 1 MB, c = 6 or 7.
  const double best = pipelined_law(4, 1e6, 1e-6, 50e9).time_s(1e-6, 50e9);
  for (int c = 1; c <= 20; ++c) EXPECT_LE(best, (2 + c) * (1e-6 + 1e6 / (c * 50e9)) * (1 + 1e-12));
}

TEST(Links, ReplaysTakeTheTimesOfTheFormulas) {
  const auto all = first(8);
  const auto alone = [&](CollectiveOp op, std::optional<LinkAlgorithm> algorithm = {}) {
    return time_s(cluster(), 8, {{op, all}}, kMiB64, algorithm);
  };
  EXPECT_NEAR(alone(CollectiveOp::kAllReduce, LinkAlgorithm::kRing),
              14 * 5e-6 + 2 * 7.0 / 8 * kMiB64 / 50e9, 1e-9 * 2.4e-3);
  EXPECT_NEAR(alone(CollectiveOp::kAllReduce, LinkAlgorithm::kTree), 6 * 5e-6 + 2.0 * kMiB64 / 50e9,
              1e-9 * 2.7e-3);
  for (const CollectiveOp op :
       {CollectiveOp::kReduceScatter, CollectiveOp::kAllGather, CollectiveOp::kAllToAll})
    EXPECT_NEAR(alone(op), 7 * 5e-6 + 7.0 / 8 * kMiB64 / 50e9, 1e-9 * 1.2e-3);
}

// Two nodes of 8, 313 GB/s and 5 us inside, 50 GB/s and 10 us across: 0.63298 ms.
TEST(Links, TwoLevelsTakeTheTimeOfTheFormula) {
  machine::Profile profile = cluster();
  profile.set("topology.link", number(313, "GB/s"));
  profile.set("topology.nic", number(50, "GB/s"));
  EXPECT_NEAR(time_s(profile, 16, {{CollectiveOp::kAllReduce, first(16)}}, kMiB64,
                     LinkAlgorithm::kTwoLevel),
              0.63298e-3, 5e-9);
  // The libraries' choice is the fastest.
  double fastest_s = 1;
  for (const LinkAlgorithm algorithm :
       {LinkAlgorithm::kRing, LinkAlgorithm::kTree, LinkAlgorithm::kTwoLevel})
    fastest_s = std::min(
        fastest_s, time_s(profile, 16, {{CollectiveOp::kAllReduce, first(16)}}, kMiB64, algorithm));
  EXPECT_EQ(time_s(profile, 16, {{CollectiveOp::kAllReduce, first(16)}}, kMiB64), fastest_s);
}

// A reduce_scatter: in the node over S, then on every rail over S / 8; an all_gather the other way.
TEST(Links, HalvesOfAnAllReduceTakeTwoLevelsToo) {
  machine::Profile profile = cluster();
  profile.set("topology.link", number(313, "GB/s"));
  profile.set("topology.nic", number(50, "GB/s"));
  const auto alone = [&](CollectiveOp op, int nodes, int64_t bytes,
                         std::optional<LinkAlgorithm> algorithm = {}) {
    return time_s(profile, 8 * nodes, {{op, first(8 * nodes)}}, bytes, algorithm);
  };
  for (const int nodes : {2, 5, 128}) {
    const double N = nodes, S = kMiB64;
    const double node_s = 7 * 5e-6 + 7.0 / 8 * S / 313e9;
    const double rail_s = (N - 1) * 10e-6 + (N - 1) / N * S / 8 / 50e9;
    const double ring_s = (8 * N - 1) * 10e-6 + (8 * N - 1) / (8 * N) * S / 313e9;
    for (const CollectiveOp op : {CollectiveOp::kReduceScatter, CollectiveOp::kAllGather}) {
      const double two_s = alone(op, nodes, kMiB64, LinkAlgorithm::kTwoLevel);
      EXPECT_NEAR(two_s, node_s + rail_s, 1e-9 * two_s) << nodes;
      EXPECT_NEAR(alone(op, nodes, kMiB64, LinkAlgorithm::kRing), ring_s, 1e-9 * ring_s) << nodes;
      EXPECT_EQ(alone(op, nodes, kMiB64), two_s) << nodes;  // which has fewer hops
    }
    const double both_s = alone(CollectiveOp::kAllReduce, nodes, kMiB64, LinkAlgorithm::kTwoLevel);
    EXPECT_NEAR(both_s, 2 * (node_s + rail_s), 1e-9 * both_s) << nodes;
  }
  // The bytes of a large array pass one link after the other, in a flat ring both at once.
  constexpr int64_t kLarge = int64_t{4} << 30;
  EXPECT_EQ(alone(CollectiveOp::kAllGather, 2, kLarge),
            alone(CollectiveOp::kAllGather, 2, kLarge, LinkAlgorithm::kRing));
}

TEST(Links, AMeshGivesAGroupALinkToEachOfItsRanks) {
  machine::Profile profile = cluster();
  profile.links = machine::NodeLinks::kMesh;
  for (const int n : {2, 4, 8})
    EXPECT_NEAR(time_s(profile, 8, {{CollectiveOp::kAllGather, first(n)}}, kMiB64),
                (n - 1) * 5e-6 + double(n - 1) / n * kMiB64 / (50e9 * (n - 1)), 1e-12);
}

TEST(Links, W7AnotherTopologyGivesAnotherAnswer) {
  const std::vector<std::pair<CollectiveOp, std::vector<int>>> gather = {
      {CollectiveOp::kAllGather, first(16)}};
  const double base = time_s(cluster(), 16, gather, kMiB64);
  for (const auto& [key, value, unit] :
       {std::tuple{"topology.nic", 5.0, "GB/s"}, std::tuple{"topology.nic_latency", 50.0, "us"},
        std::tuple{"topology.oversubscription", 8.0, "1"}}) {
    machine::Profile other = cluster();
    other.set(key, number(value, unit));
    EXPECT_GT(time_s(other, 16, gather, kMiB64), 1.01 * base) << key;
  }
  machine::Profile mesh = cluster();
  mesh.links = machine::NodeLinks::kMesh;
  EXPECT_NE(time_s(mesh, 8, {{CollectiveOp::kAllGather, first(8)}}, kMiB64),
            time_s(cluster(), 8, {{CollectiveOp::kAllGather, first(8)}}, kMiB64));
}

TEST(Links, W12MoreNodesTakeLongerForSmallMessages) {
  double before_s = 0;
  for (const int nodes : {1, 2, 4, 8}) {
    const double s =
        time_s(cluster(), 8 * nodes, {{CollectiveOp::kAllReduce, first(8 * nodes)}}, 64);
    EXPECT_GT(s, 1.15 * before_s) << nodes;
    before_s = s;
  }
}

TEST(Links, GroupsOnTheSameNicsShareThem) {
  // Two groups of one rank a node; on different ranks they do not meet, on the same ones they do.
  const auto apart = time_s(
      cluster(), 16,
      {{CollectiveOp::kAllGather, first(2, 0, 8)}, {CollectiveOp::kAllGather, first(2, 1, 8)}},
      kMiB64);
  const auto same = time_s(
      cluster(), 16,
      {{CollectiveOp::kAllGather, first(2, 0, 8)}, {CollectiveOp::kAllGather, first(2, 0, 8)}},
      kMiB64);
  EXPECT_NEAR(apart, 10e-6 + kMiB64 / 2 / 25e9, 1e-12);
  EXPECT_NEAR(same, 10e-6 + kMiB64 / 25e9, 1e-12);
}

TEST(Links, AMissingRateNamesItsKeyAndCommand) {
  machine::Profile profile = cluster();
  profile.quantities.erase("topology.nic_latency");
  expect_error([&] { ClusterLinks(profile, 16, 8); }, ErrorKind::kConfig, "ashlar bench p2p");
}

}  // namespace
}  // namespace ashlar::sim
