// Rates of flow sets, against max-min fairness by hand.
#include "ashlar/sim/flow_sets.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace ashlar::sim {
namespace {

std::vector<ResourceUse> uses(std::initializer_list<int> resources) {
  std::vector<ResourceUse> list;
  for (const int r : resources) list.push_back({r, 1});
  return list;
}

TEST(FlowSets, ThreadsShareCoresEvenly) {
  FlowSets sets;
  const int cores = sets.add_resource(2);
  const int a = sets.start(1.0, 1, uses({cores}), 0);
  const int b = sets.start(1.0, 1, uses({cores}), 0);
  EXPECT_EQ(sets.end_s(a), 1);  // a core each
  const int c = sets.start(1.0, 1, uses({cores}), 0.5);
  EXPECT_DOUBLE_EQ(sets.end_s(a), 0.5 + 0.5 / (2.0 / 3));
  EXPECT_DOUBLE_EQ(sets.end_s(c), 0.5 + 1 / (2.0 / 3));
  sets.end(a, 1.25);
  sets.end(b, 1.25);
  EXPECT_DOUBLE_EQ(sets.end_s(c), 1.25 + 0.5);  // alone again
}

TEST(FlowSets, WhereThereIsRoomNobodyIsTouched) {
  FlowSets sets;
  const int cores = sets.add_resource(4);
  const int a = sets.start(0.3, 1, uses({cores}), 0.1);
  sets.take_changed();
  const int b = sets.start(0.7, 1, uses({cores}), 0.2);
  EXPECT_EQ(sets.take_changed(), std::vector<int>{b});
  EXPECT_EQ(sets.end_s(a), 0.1 + 0.3);
  sets.end(a, 0.1 + 0.3);
  EXPECT_TRUE(sets.take_changed().empty());
}

// Bertsekas and Gallager's example: what one link denies a flow, another flow gets elsewhere.
TEST(FlowSets, RatesAreMaxMinFair) {
  FlowSets sets;
  const int narrow = sets.add_resource(1), wide = sets.add_resource(2);
  const int both = sets.start(1, 0, uses({narrow, wide}), 0);
  const int other = sets.start(1, 0, uses({narrow}), 0);
  const int rest = sets.start(1, 0, uses({wide}), 0);
  EXPECT_DOUBLE_EQ(sets.end_s(both), 1 / 0.5);
  EXPECT_DOUBLE_EQ(sets.end_s(other), 1 / 0.5);
  EXPECT_DOUBLE_EQ(sets.end_s(rest), 1 / 1.5);
}

TEST(FlowSets, LimitsAndWeightsCount) {
  FlowSets sets;
  const int cores = sets.add_resource(4);
  const std::vector<ResourceUse> three = {{cores, 3}};
  const int kernel = sets.start(1, 1, three, 0);
  const int lane = sets.start(1, 0.5, uses({cores}), 0);
  EXPECT_EQ(sets.end_s(kernel), 1);  // 3 + 0.5 cores
  sets.set_limit(lane, 1, 0);
  EXPECT_EQ(sets.end_s(lane), 1);  // 3 + 1
  const int more = sets.start(1, 1, three, 0);
  EXPECT_DOUBLE_EQ(sets.end_s(more), 7.0 / 4);  // 3 x + x + 3 x = 4
  EXPECT_TRUE(sets.full(cores));
}

// Every set is at its limit, or uses a full resource on which no set has a higher rate.
TEST(FlowSets, RandomSetsAreMaxMinFair) {
  std::mt19937_64 random(7);
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int round = 0; round < 50; ++round) {
    FlowSets sets;
    std::vector<int> numbers;
    std::vector<std::vector<ResourceUse>> all;
    std::vector<double> limits, left, capacities;
    for (int r = 0; r < 8; ++r) {
      capacities.push_back(number(1, 10));
      sets.add_resource(capacities.back());
    }
    for (int i = 0; i < 12; ++i) {
      std::vector<ResourceUse>& list = all.emplace_back();
      for (int r = 0; r < 8; ++r)
        if (number(0, 1) < 0.4) list.push_back({r, number(0.5, 2)});
      limits.push_back(number(0.2, 4));
      numbers.push_back(sets.start(1, limits.back(), list, 0));
    }
    std::vector<double> rates, used(8);
    for (size_t i = 0; i < 12; ++i) {
      rates.push_back(1 / sets.end_s(numbers[i]));
      for (const ResourceUse& use : all[i]) used[size_t(use.resource)] += use.weight * rates[i];
    }
    for (size_t r = 0; r < 8; ++r) EXPECT_LE(used[r], capacities[r] * (1 + 1e-9));
    for (size_t i = 0; i < 12; ++i) {
      bool bound = rates[i] >= limits[i] * (1 - 1e-9);
      for (const ResourceUse& use : all[i]) {
        if (used[size_t(use.resource)] < capacities[size_t(use.resource)] * (1 - 1e-9)) continue;
        bool highest = true;
        for (size_t j = 0; j < 12; ++j)
          for (const ResourceUse& other : all[j])
            highest &= other.resource != use.resource || rates[j] <= rates[i] * (1 + 1e-9);
        bound |= highest;
      }
      EXPECT_TRUE(bound) << "round " << round << ", set " << i;
    }
  }
}

TEST(FlowSets, RatesAreSolvedAgainWhereASetEnds) {
  FlowSets sets;
  const int link = sets.add_resource(10);
  const int a = sets.start(10, 0, uses({link}), 0), b = sets.start(20, 0, uses({link}), 0);
  EXPECT_EQ(sets.end_s(a), 2);
  sets.end(a, 2);
  EXPECT_EQ(sets.end_s(b), 3);  // 10 left at full rate
  EXPECT_GT(sets.version(b), 1);
}

}  // namespace
}  // namespace ashlar::sim
