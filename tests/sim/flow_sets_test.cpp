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

// Random sets that start, end and get other limits, and the work that each has left.
class RandomSets {
 public:
  explicit RandomSets(uint64_t seed) : random_(seed) {
    for (int r = 0; r < kResources; ++r) {
      capacities_.push_back(number(1, 10));
      sets_.add_resource(capacities_.back());
    }
  }

  void start() {
    RandomSet set{.limit = number(0.2, 4), .left = 1000};
    for (int r = 0; r < kResources; ++r)
      if (number(0, 1) < 0.4) set.uses.push_back({r, number(0.5, 2)});
    set.number = sets_.start(set.left, set.limit, set.uses, now_s_);
    all_.push_back(set);
  }
  void end_one() {
    const size_t i = size_t(number(0, double(all_.size())));
    sets_.end(all_[i].number, now_s_);
    all_.erase(all_.begin() + int64_t(i));
  }
  void limit_one() {
    RandomSet& set = all_[size_t(number(0, double(all_.size())))];
    set.limit = number(0.2, 4);
    sets_.set_limit(set.number, set.limit, now_s_);
  }
  void pass(double seconds) {
    for (RandomSet& set : all_) set.left -= rate(set) * seconds;
    now_s_ += seconds;
  }

  // Every set is at its limit, or uses a full resource on which no set has a higher rate.
  void expect_fair() {
    std::vector<double> used(kResources);
    for (const RandomSet& set : all_)
      for (const ResourceUse& use : set.uses) used[size_t(use.resource)] += use.weight * rate(set);
    for (size_t r = 0; r < kResources; ++r) EXPECT_LE(used[r], capacities_[r] * (1 + 1e-8));
    for (const RandomSet& set : all_) {
      bool bound = rate(set) >= set.limit * (1 - 1e-8);
      for (const ResourceUse& use : set.uses) {
        const size_t r = size_t(use.resource);
        bound |= used[r] > capacities_[r] * (1 - 1e-8) && highest(set, use.resource);
      }
      EXPECT_TRUE(bound) << "set " << set.number << " at " << now_s_;
    }
  }

  double number(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

 private:
  static constexpr int kResources = 8;
  struct RandomSet {
    int number = 0;
    double limit = 0, left = 0;
    std::vector<ResourceUse> uses = {};
  };
  double rate(const RandomSet& set) { return set.left / (sets_.end_s(set.number) - now_s_); }
  bool highest(const RandomSet& set, int resource) {
    for (const RandomSet& other : all_)
      for (const ResourceUse& use : other.uses)
        if (use.resource == resource && rate(other) > rate(set) * (1 + 1e-8)) return false;
    return true;
  }

  std::mt19937_64 random_;
  FlowSets sets_;
  std::vector<double> capacities_;
  std::vector<RandomSet> all_;
  double now_s_ = 0;
};

TEST(FlowSets, RandomSetsAreMaxMinFair) {
  for (uint64_t round = 0; round < 50; ++round) {
    RandomSets sets(round);
    for (int i = 0; i < 12; ++i) sets.start();
    sets.expect_fair();
    for (int step = 0; step < 10; ++step) {
      sets.pass(sets.number(0, 1));
      for (int i = 0; i < 3; ++i) {
        sets.end_one();
        sets.start();
        sets.limit_one();
      }
      sets.expect_fair();
    }
  }
}

TEST(FlowSets, WhatHappensAtOneTimeIsSolvedAtOnce) {
  FlowSets sets;
  const int link = sets.add_resource(10);
  const int a = sets.start(10, 0, uses({link}), 0);
  for (int i = 0; i < 4; ++i) sets.start(100, 0, uses({link}), 0);
  EXPECT_EQ(sets.take_changed().size(), 5u);
  EXPECT_EQ(sets.version(a), 1);
  const int last = sets.start(5, 0, uses({link}), 0);
  EXPECT_DOUBLE_EQ(sets.end_s(a), 6);
  // One ends as another starts: nobody else is touched.
  sets.take_changed();
  sets.end(a, 1);
  const int next = sets.start(5, 0, uses({link}), 1);
  EXPECT_EQ(sets.take_changed(), std::vector<int>{next});
  EXPECT_DOUBLE_EQ(sets.end_s(last), 3);
  EXPECT_DOUBLE_EQ(sets.end_s(next), 4);
}

TEST(FlowSets, RatesAreSolvedAgainWhereASetEnds) {
  FlowSets sets;
  const int link = sets.add_resource(10);
  const int a = sets.start(10, 0, uses({link}), 0), b = sets.start(20, 0, uses({link}), 0);
  EXPECT_EQ(sets.end_s(a), 2);
  sets.end(a, 2);
  EXPECT_EQ(sets.end_s(b), 3);  // 10 left at full rate
  EXPECT_EQ(sets.version(b), 2);
}

}  // namespace
}  // namespace ashlar::sim
