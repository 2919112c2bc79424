#include "ashlar/train/placing.h"

#include <gtest/gtest.h>

#include "ashlar/core/error.h"

namespace ashlar::train {
namespace {

const char* const kEightCores = "package:2 numa:1 l3:1 core:4 pu:1";

std::vector<std::string> texts_of(const std::vector<Placed>& places) {
  std::vector<std::string> texts;
  for (const Placed& placed : places) texts.push_back(placed.text);
  return texts;
}

std::string shown(const std::vector<Cpus>& usable, int num_threads,
                  Binding binding = Binding::kCache) {
  return describe_places(
      texts_of(place_host(parse_topology(kEightCores), usable, num_threads, binding)));
}

const Cpus kAll{0, 1, 2, 3, 4, 5, 6, 7};

TEST(Placing, RanksThatShareCpusDivideThem) {
  EXPECT_EQ(shown({kAll, kAll}, 0),
            "rank 0: any of CPUs 0-3 of NUMA node 0; rank 1: any of CPUs 4-7 of NUMA node 1");
  EXPECT_EQ(shown({kAll, kAll}, 0, Binding::kCore),
            "rank 0: CPUs 0-3 of NUMA node 0; rank 1: CPUs 4-7 of NUMA node 1");
  EXPECT_EQ(shown({{2, 3}, {2, 3}}, 1), "ranks 0 to 1: any of CPUs 2-3 of NUMA node 0");
  EXPECT_EQ(shown({{2, 3}, {2, 3}}, 1, Binding::kCore),
            "rank 0: CPU 2 of NUMA node 0; rank 1: CPU 3 of NUMA node 0");
}

TEST(Placing, ALaunchersBindingIsKept) {
  EXPECT_EQ(shown({{0, 1}, {4, 5}}, 0),
            "rank 0: any of CPUs 0-1 of NUMA node 0; rank 1: any of CPUs 4-5 of NUMA node 1");
  // Two sockets with two ranks each, as mpirun binds more than two ranks.
  EXPECT_EQ(shown({{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}}, 2),
            "rank 0: any of CPUs 0-3 of NUMA node 0; rank 1: any of CPUs 4-7 of NUMA node 1; "
            "rank 2: any of CPUs 0-3 of NUMA node 0; rank 3: any of CPUs 4-7 of NUMA node 1");
}

TEST(Placing, OverlappingSetsBindNothing) {
  EXPECT_EQ(
      shown({{0, 1, 2}, {2, 3}}, 1),
      "rank 0: CPUs 0-2 of NUMA node 0, not bound; rank 1: CPUs 2-3 of NUMA node 0, not bound");
}

TEST(Placing, OneRankThatLeavesCoresIdleIsNotBound) {
  EXPECT_EQ(shown({kAll}, 2), "rank 0: CPUs 0-7 of NUMA nodes 0-1, not bound");
  EXPECT_EQ(shown({kAll}, 2, Binding::kCore), "rank 0: CPUs 0-1 of NUMA node 0");
  EXPECT_EQ(shown({kAll}, 8), "rank 0: caches of CPUs 0-7 of NUMA nodes 0-1");
  EXPECT_EQ(shown({kAll}, 8, Binding::kCore), "rank 0: CPUs 0-7 of NUMA nodes 0-1");
}

TEST(Placing, RanksThatLeaveCoresIdleHaveShares) {
  EXPECT_EQ(shown({kAll, kAll}, 1),
            "rank 0: any of CPUs 0-3 of NUMA node 0; rank 1: any of CPUs 4-7 of NUMA node 1");
  EXPECT_EQ(shown({kAll, kAll}, 1, Binding::kCore),
            "rank 0: CPU 0 of NUMA node 0; rank 1: CPU 4 of NUMA node 1");
}

TEST(Placing, MoreThreadsThanCpusHaveNodes) {
  EXPECT_EQ(shown({kAll, kAll}, 8),
            "rank 0: any of CPUs 0-3 of NUMA node 0; rank 1: any of CPUs 4-7 of NUMA node 1");
  EXPECT_EQ(shown({{0, 1}, {0, 1}, {0, 1}, {0, 1}}, 1, Binding::kCore),
            "ranks 0 to 3: any of CPUs 0-1 of NUMA node 0");
  EXPECT_EQ(shown({{1}, {1}}, 1), "ranks 0 to 1: CPU 1 of NUMA node 0, by turns");
}

TEST(Placing, NoneBindsNothing) {
  const std::vector<Cpus> usable{kAll, kAll};
  for (const Placed& placed : place_host(flat_topology(kAll), usable, 0, Binding::kNone)) {
    EXPECT_TRUE(placed.threads.empty());
    EXPECT_TRUE(placed.home.empty());
    EXPECT_EQ(placed.num_threads, 4);
    EXPECT_EQ(placed.num_cpus, 8);
    EXPECT_EQ(placed.text, "CPUs 0-7, not bound");
  }
}

TEST(Placing, HelpersAreFreeWithinTheNode) {
  const std::vector<Cpus> usable{kAll, kAll, kAll, kAll};
  const std::vector<Placed> places =
      place_host(parse_topology(kEightCores), usable, 2, Binding::kCache);
  EXPECT_EQ(places[1].threads, (std::vector<Cpus>{{0, 1, 2, 3}, {0, 1, 2, 3}}));
  EXPECT_EQ(places[1].home, (Cpus{0, 1, 2, 3}));
}

TEST(Placing, ManyRanksAreDescribedInShort) {
  std::vector<std::string> places;
  for (int rank = 0; rank < 64; ++rank) places.push_back("CPU " + std::to_string(rank));
  EXPECT_EQ(describe_places(places),
            "rank 0: CPU 0; rank 1: CPU 1; rank 2: CPU 2; rank 3: CPU 3; ...; rank 63: CPU 63");
}

TEST(Placing, OtherWordsAreRefused) {
  EXPECT_EQ(parse_binding(""), Binding::kCache);
  EXPECT_EQ(parse_binding("l3cache"), Binding::kCache);
  EXPECT_EQ(parse_binding("core"), Binding::kCore);
  EXPECT_EQ(parse_binding("none"), Binding::kNone);
  try {
    parse_binding("socket");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_STREQ(error.what(), "--bind-to is socket; expected l3cache, core or none");
  }
}

}  // namespace
}  // namespace ashlar::train
