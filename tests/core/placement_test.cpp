#include "ashlar/core/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace ashlar {
namespace {

Cpus range(int begin, int end) {
  Cpus cpus(static_cast<size_t>(end - begin));
  std::iota(cpus.begin(), cpus.end(), begin);
  return cpus;
}

// As the system numbers most servers: CPUs n and n + 112 are siblings.
const char* const kTwoSockets = "package:2 numa:1 l3:1 core:56 pu:2(indexes=2*112:112*1)";
const char* const kEightNodes = "package:2 numa:4 l3:1 core:7 pu:2(indexes=2*56:56*1)";
const char* const kSmallCaches = "package:1 numa:1 l3:4 core:4 pu:1";
const char* const kTwoCores = "package:1 numa:1 l3:1 core:2 pu:1";

// "0-3 | 4-7": the threads of every rank in their order, or "(0-7)", the set where threads have no
// CPU of their own.
std::string shown(const std::vector<RankPlace>& places) {
  std::string text;
  for (const RankPlace& place : places) {
    text += text.empty() ? "" : " | ";
    text += place.threads.empty() ? "(" + cpus_text(place.cpus) + ")" : cpus_text(place.threads);
  }
  return text;
}

struct PlacementCase {
  const char* name;
  const char* machine;
  Cpus usable;  // empty: all
  int ranks, threads;
  const char* want;
};

const PlacementCase kPlacementCases[] = {
    {"a rank on all cores", kTwoSockets, {}, 1, 112, "0-111"},
    {"siblings come last", kTwoSockets, {}, 1, 224, "0-223"},
    {"a rank that fits stays in a socket", kTwoSockets, {}, 1, 56, "0-55"},
    {"a rank a socket", kTwoSockets, {}, 2, 56, "0-55 | 56-111"},
    {"few threads, spread over sockets", kTwoSockets, {}, 2, 1, "0 | 56"},
    {"siblings of the own cores", kTwoSockets, {}, 2, 112, "0-55,112-167 | 56-111,168-223"},
    {"uneven ranks", kTwoSockets, {}, 3, 28, "0-27 | 28-55 | 56-83"},
    {"a rank across sockets only where it must", kTwoSockets, {}, 3, 37, "0-36 | 37-73 | 74-110"},
    {"a rank a node",
     kEightNodes,
     {},
     8,
     7,
     "0-6 | 7-13 | 14-20 | 21-27 | 28-34 | 35-41 | 42-48 | 49-55"},
    {"two nodes a rank", kEightNodes, {}, 4, 14, "0-13 | 14-27 | 28-41 | 42-55"},
    {"ranks far apart", kEightNodes, {}, 4, 7, "0-6 | 7-13 | 28-34 | 35-41"},
    {"three ranks in a node of seven", kEightNodes, range(0, 7), 3, 2, "0-1 | 2-3 | 4-5"},
    {"a rank a cache", kSmallCaches, {}, 4, 4, "0-3 | 4-7 | 8-11 | 12-15"},
    {"two ranks, two caches each", kSmallCaches, {}, 2, 8, "0-7 | 8-15"},
    {"two ranks, small, in caches of their own", kSmallCaches, {}, 2, 2, "0-1 | 4-5"},
    {"a control group of three", kTwoSockets, {4, 5, 6}, 3, 1, "4 | 5 | 6"},
    {"three CPUs, two ranks", kTwoSockets, {4, 5, 6}, 2, 1, "4 | 5"},
    {"one CPU", kTwoSockets, {77}, 1, 1, "77"},
    {"siblings alone", kTwoSockets, {3, 115}, 2, 1, "3 | 115"},
    {"cores before siblings", kTwoSockets, {3, 4, 115, 116}, 2, 1, "3 | 4"},
    {"CPUs with gaps, on both sockets", kTwoSockets, {1, 9, 60, 70}, 2, 2, "1,9 | 60,70"},
    {"gaps, uneven over sockets", kTwoSockets, {1, 9, 11, 60}, 2, 2, "1,9 | 11,60"},
    {"CPUs that the topology lacks", kTwoCores, {0, 1, 5, 6}, 2, 2, "0-1 | 5-6"},
    {"more threads than CPUs", kTwoCores, {}, 1, 4, "(0-1)"},
    {"more ranks than CPUs", kTwoCores, {}, 4, 1, "(0-1) | (0-1) | (0-1) | (0-1)"},
    {"more threads than one CPU", kTwoCores, {1}, 2, 1, "(1) | (1)"},
    {"crowded sockets", kTwoSockets, range(0, 112), 2, 80, "(0-55) | (56-111)"}};

TEST(Placement, Table) {
  for (const PlacementCase& c : kPlacementCases) {
    SCOPED_TRACE(c.name);
    const Topology topology = parse_topology(c.machine);
    const Cpus usable = c.usable.empty() ? topology.allowed : c.usable;
    const std::vector<RankPlace> places = place_ranks(topology, usable, c.ranks, c.threads);
    ASSERT_EQ(int(places.size()), c.ranks);
    EXPECT_EQ(shown(places), c.want);
    std::set<int> taken;
    for (const RankPlace& place : places) {
      EXPECT_EQ(common_cpus(place.cpus, usable), place.cpus);
      EXPECT_EQ(common_cpus(place.cpus, place.nearby), place.cpus);
      EXPECT_EQ(common_cpus(place.nearby, usable), place.nearby);
      for (const int cpu : place.threads) {
        EXPECT_TRUE(std::binary_search(place.cpus.begin(), place.cpus.end(), cpu)) << cpu;
        EXPECT_TRUE(taken.insert(cpu).second) << cpu;
      }
    }
  }
}

TEST(Placement, HelpersHaveTheNodesOfTheRank) {
  const Topology topology = parse_topology(kEightNodes);
  const std::vector<RankPlace> places = place_ranks(topology, range(0, 14), 4, 3);
  ASSERT_EQ(shown(places), "0-2 | 3-5 | 7-9 | 10-12");
  EXPECT_EQ(places[1].nearby, range(0, 7));
  EXPECT_EQ(places[2].nearby, range(7, 14));
}

TEST(Placement, ThreadsOfAShare) {
  EXPECT_EQ(threads_of_share(range(0, 5), 2), 2);
  EXPECT_EQ(threads_of_share(range(0, 2), 4), 1);
}

TEST(Placement, CoresAreFullWithoutTheirSiblings) {
  const Topology topology = parse_topology(kTwoSockets);
  EXPECT_TRUE(fills_cores(topology, topology.allowed, 112));
  EXPECT_FALSE(fills_cores(topology, topology.allowed, 111));
  EXPECT_TRUE(fills_cores(topology, {3, 115}, 1));
}

TEST(Placement, Texts) {
  EXPECT_EQ(place_text(parse_topology(kTwoSockets), range(50, 60)), "CPUs 50-59 of NUMA nodes 0-1");
  EXPECT_EQ(place_text(parse_topology(kTwoCores), {1}), "CPU 1 of NUMA node 0");
  EXPECT_EQ(place_text(flat_topology({0, 1}), {1}), "CPU 1");
}

}  // namespace
}  // namespace ashlar
