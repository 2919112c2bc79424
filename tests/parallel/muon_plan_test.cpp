// The rules of muon_plan.h: owners, rounds, stacks; and the plan of the reference run.
#include "ashlar/parallel/muon_plan.h"

#include <gtest/gtest.h>

#include <ctime>
#include <set>

#include "tests/parallel/muon_layouts.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

class MuonPlanLayouts : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Layouts, MuonPlanLayouts, testing::Range<size_t>(0, all_layouts().size()),
                         [](const auto& info) { return all_layouts()[info.param].name; });

// The plans that ranks make alone fit together, and follow the rules of muon_plan.h.
TEST_P(MuonPlanLayouts, OfAllRanksAgree) {
  const Layout layout = all_layouts()[GetParam()];
  const Shares shares = shares_of(layout);
  for (const MuonMode mode : kModes) {
    std::map<Key, std::pair<int, int>> chosen;  // owner, round
    std::map<Key, int> seen;
    std::set<std::pair<int, int>> busy;  // rank, round
    for (int rank = 0; rank < layout.num_ranks(); ++rank) {
      const MuonPlan plan = layout.plan(rank, mode);
      for (const MuonMatrix& m : plan.matrices) {
        const auto at = chosen.emplace(key_of(m), std::pair(m.owner, m.round)).first;
        EXPECT_EQ(at->second, std::pair(m.owner, m.round));
        ++seen[key_of(m)];
        if (m.is_worker(rank)) {
          EXPECT_TRUE(busy.emplace(rank, m.round).second) << "two matrices in a round";
        }
        const auto& holders = shares.at(key_of(m));
        const bool owned = holders.size() > 1 && (mode == MuonMode::kOwner ||
                                                  (mode == MuonMode::kAuto && holders.size() > 3));
        EXPECT_EQ(m.owner >= 0, owned);
        if (!owned) continue;
        for (const auto& [r, elements] : holders) EXPECT_LE(elements, holders.at(m.owner));
      }
    }
    for (const auto& [key, holders] : shares) {
      if (holders.size() > 1) {
        EXPECT_EQ(seen[key], int(holders.size()));
      }
    }
  }
}

// Elements of one matrix on 5 ranks with 7 and 6, in 4 matrices: the tie goes round.
TEST(MuonPlan, EqualHoldersTakeTurnsAsOwners) {
  Layout layout{"", {{"x", {8, 5}, 4}}, {}};  // matrices of 10 elements
  layout.ranks.resize(5);
  for (int64_t m = 0; m < 4; ++m)
    for (int64_t r = 0; r < 5; ++r)
      layout.ranks[size_t(r)].push_back(
          {0, 0, {Box::whole({8, 5})}, 10 * m + 2 * r, 10 * m + 2 * r + 2});
  const MuonPlan plan = layout.plan(4, MuonMode::kAuto);
  ASSERT_EQ(plan.matrices.size(), 4u);
  for (int m = 0; m < 4; ++m) {
    EXPECT_EQ(plan.matrices[size_t(m)].owner, m);
    EXPECT_EQ(plan.matrices[size_t(m)].round, 0);
    EXPECT_EQ(plan.matrices[size_t(m)].segments.size(), 1u);  // its own alone
  }
}

TEST(MuonPlan, WorkOnWholeMatricesDecidesATie) {
  // Rank 0 has a whole matrix besides; ranks 1, 2, 3 and 0 share the other evenly.
  Layout layout{"", {{"whole", {4, 4}}, {"x", {4, 4}}}, {}};
  for (int64_t r = 0; r < 4; ++r)
    layout.ranks.push_back({{1, 0, {Box::whole({4, 4})}, 4 * r, 4 * r + 4}});
  layout.ranks[0].push_back({0, 0, {Box::whole({4, 4})}, 0, 16});
  EXPECT_EQ(layout.plan(3, MuonMode::kAuto).matrices.at(0).owner, 1);
  layout.ranks[0].pop_back();
  layout.ranks[2].push_back({0, 0, {Box::whole({4, 4})}, 0, 16});
  EXPECT_EQ(layout.plan(3, MuonMode::kAuto).matrices.at(0).owner, 0);
}

// Neighbours share the matrix at each edge: everybody works on both of its own in two rounds.
TEST(MuonPlan, EdgesOfContiguousShardsTakeTwoRounds) {
  const Layout layout = contiguous("", {{"x", {61, 6, 5}, 61}}, 7);  // 262 elements each
  for (int rank = 0; rank < 7; ++rank) {
    const MuonPlan plan = layout.plan(rank, MuonMode::kAuto);
    ASSERT_EQ(plan.stacks.size(), 1u);
    EXPECT_GE(plan.stacks[0].num_matrices, 7);
    EXPECT_EQ(plan.matrices.size(), rank == 0 || rank == 6 ? 1u : 2u);
    for (const MuonMatrix& m : plan.matrices) {
      EXPECT_LT(m.round, 2);
      EXPECT_FALSE(m.packed);
    }
  }
}

TEST(MuonPlan, WholeMatricesSideBySideAreOneStack) {
  const Layout layout = cut_at("", {"x", {6, 4, 5}, 6}, {0, 47, 120});
  const MuonPlan plan = layout.plan(1, MuonMode::kAuto);
  ASSERT_EQ(plan.stacks.size(), 1u);
  EXPECT_EQ(plan.stacks[0].begin, 13);
  EXPECT_EQ(plan.stacks[0].num_matrices, 3);
}

// ZAYA1-8B's matrices over 1,024 ranks: 40 blocks, 16 experts.
std::vector<TestTensor> zaya1_8b() {
  std::vector<TestTensor> list;
  for (int l = 0; l < 40; ++l) {
    list.push_back({"q", {1024, 2048}});
    list.push_back({"k", {256, 2048}});
    list.push_back({"v", {256, 2048}});
    list.push_back({"o", {2048, 1024}});
    list.push_back({"down", {256, 2048}});
    list.push_back({"fc1", {256, 256}});
    list.push_back({"fc2", {256, 256}});
    list.push_back({"gate_up", {16, 4096, 2048}, 16});
    list.push_back({"down", {16, 2048, 2048}, 16});
  }
  return list;
}

TEST(MuonPlan, PlansTheReferenceRunQuickly) {
  const std::vector<Layout> layouts = {contiguous("contiguous", zaya1_8b(), 1024),
                                       bucketed("bucketed", zaya1_8b(), 1024, int64_t{8} << 20)};
  for (const Layout& layout : layouts) {
    const std::clock_t start = std::clock();
    const MuonPlan plan = layout.plan(511, MuonMode::kAuto);
    const double seconds = double(std::clock() - start) / CLOCKS_PER_SEC;  // of CPU time
    size_t segments = 0;
    int64_t rounds = 0, worked = 0;
    for (const MuonMatrix& m : plan.matrices) {
      segments += m.segments.size();
      rounds = std::max<int64_t>(rounds, m.round + 1);
      worked += m.is_worker(511);
    }
    const size_t kept = plan.matrices.size() * sizeof(MuonMatrix) + segments * sizeof(MuonSegment);
    fmt::print("{}: {:.3f} s, {} matrices in {} rounds, {} worked on, {} segments, {} KiB\n",
               layout.name, seconds, plan.matrices.size(), rounds, worked, segments, kept >> 10);
    EXPECT_LT(seconds, 10.0);  // an algorithm of the wrong order takes minutes
    EXPECT_LT(kept, size_t{4} << 20);
    EXPECT_LE(worked, 4);
  }
}

}  // namespace
}  // namespace ashlar::parallel
