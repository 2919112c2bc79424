#include "ashlar/parallel/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace ashlar::parallel {
namespace {

const std::vector<int64_t> kUnits = {160, 48, 48, 1600, 16};

// A vector over all units.
const std::vector<Stretch> kRow = {{0, 1872, {1872}}};

int64_t numel_within(const std::vector<Range>& ranges, const Range& within) {
  int64_t numel = 0;
  for (const Range& range : ranges) numel += intersect(range, within).size();
  return numel;
}

class EveryElementIsKeptOnce
    : public testing::TestWithParam<std::tuple<int, ShardLayout, int64_t>> {};

TEST_P(EveryElementIsKeptOnce, AndBucketsTileTheirUnits) {
  const auto [num_ranks, layout, bucket] = GetParam();
  const Shards shards(kUnits, kRow, num_ranks, layout, bucket, 16);
  int64_t total = 0, flat = 0;
  const int64_t all = std::accumulate(kUnits.begin(), kUnits.end(), int64_t{0});
  const std::vector<int64_t> cuts = even_cuts(kRow, all, num_ranks, 16);
  for (int64_t unit = 0; unit < shards.num_units(); ++unit) {
    std::vector<int> owner(size_t(kUnits[size_t(unit)]), -1);
    int64_t at = 0;
    for (int64_t b = 0; b < shards.num_buckets(unit); ++b) {
      EXPECT_EQ(shards.bucket(unit, b).begin, at);
      for (int rank = 0; rank < num_ranks; ++rank) {
        const Range piece = shards.piece(unit, b, rank);
        EXPECT_EQ(piece.begin, at) << "pieces stand in rank order";
        EXPECT_EQ(piece.begin % 16, 0);
        at = piece.end;
        for (int64_t i = piece.begin; i < piece.end; ++i) owner[size_t(i)] = rank;
      }
      EXPECT_EQ(shards.bucket(unit, b).end, at);
    }
    EXPECT_EQ(at, kUnits[size_t(unit)]);
    for (int rank = 0; rank < num_ranks; ++rank) {
      int64_t numel = 0;
      const Range middle{shards.bucket(unit, 0).end / 2, shards.bucket(unit, 0).end + 1};
      EXPECT_EQ(numel_within(shards.kept(unit, rank, middle), middle),
                numel_within(shards.kept(unit, rank), middle));
      for (const Range& range : shards.kept(unit, rank)) {
        for (int64_t i = range.begin; i < range.end; ++i) EXPECT_EQ(owner[size_t(i)], rank);
        numel += range.size();
      }
      EXPECT_EQ(numel, shards.kept_numel(unit, rank));
      total += numel;
      if (layout == ShardLayout::kContiguous) {
        EXPECT_LE(shards.kept(unit, rank).size(), 1u);
      }
    }
    if (layout == ShardLayout::kContiguous) {
      for (int64_t i = 0; i < kUnits[size_t(unit)]; ++i)
        EXPECT_EQ(owner[size_t(i)],
                  std::upper_bound(cuts.begin(), cuts.end(), flat + i) - cuts.begin() - 1);
    }
    flat += kUnits[size_t(unit)];
  }
  EXPECT_EQ(total, all);
}

INSTANTIATE_TEST_SUITE_P(Shards, EveryElementIsKeptOnce,
                         testing::Combine(testing::Values(1, 2, 3, 7, 200),
                                          testing::Values(ShardLayout::kContiguous,
                                                          ShardLayout::kBucketed),
                                          testing::Values(1, 100, 1 << 20)));

TEST(Shards, BucketsAreSharedEvenly) {
  const Shards shards({1600}, {}, 3, ShardLayout::kBucketed, 800, 16);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(shards.kept(0, rank).size(), 2u);
    EXPECT_NEAR(double(shards.kept_numel(0, rank)), 1600.0 / 3, 32);
  }
}

// Two blocks of 16 experts of 100 elements, after an embedding of rows of 10: with 5 ranks a cut is
// between experts, or between rows.
TEST(Shards, ContiguousOnesEndBetweenExpertsAndRows) {
  const std::vector<Stretch> row = {
      {0, 800, {80, 10}}, {800, 2400, {16, 10, 10}}, {2400, 4000, {16, 10, 10}}};
  const Shards shards({800, 1600, 1600}, row, 5, ShardLayout::kContiguous, 1 << 20, 2);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(shards.kept_numel(0, rank), rank == 0 ? 800 : 0);
    for (const int64_t unit : {1, 2}) EXPECT_EQ(shards.kept_numel(unit, rank) % 100, 0);
  }
}

}  // namespace
}  // namespace ashlar::parallel
