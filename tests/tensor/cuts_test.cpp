#include "ashlar/tensor/cuts.h"

#include <gtest/gtest.h>

#include <random>

namespace ashlar {
namespace {

using Cuts = std::vector<int64_t>;

// Tensors one after another, each from a multiple of `align` on.
std::vector<Stretch> row_of(const std::vector<Shape>& shapes, int64_t align = 1,
                            int64_t weight = 1) {
  std::vector<Stretch> row;
  int64_t begin = 0;
  for (const Shape& shape : shapes) {
    row.push_back({begin, begin + shape.numel(), shape, 0, weight});
    begin = (row.back().end + align - 1) / align * align;
  }
  return row;
}

TEST(EvenCuts, FallOnRows) {
  EXPECT_EQ(even_cuts(row_of({{100, 10}}), 1000, 4, 1), (Cuts{0, 250, 500, 750, 1000}));
  EXPECT_EQ(even_cuts(row_of({{100, 10}}), 1000, 3, 1), (Cuts{0, 330, 660, 1000}));
  EXPECT_EQ(even_cuts(row_of({{4}}), 4, 2, 1), (Cuts{0, 2, 4}));
}

TEST(EvenCuts, FallOnExpertsWhereThatIsEvenEnoughElseOnTheirRows) {
  // 30 experts of 100 elements: a third is 10 of them.
  EXPECT_EQ(even_cuts(row_of({{30, 10, 10}}), 3000, 3, 1), (Cuts{0, 1000, 2000, 3000}));
  // 98 experts: parts of 32, 33 and 33, which is 1.01 of the mean.
  EXPECT_EQ(even_cuts(row_of({{98, 10, 10}}), 9800, 3, 1), (Cuts{0, 3200, 6500, 9800}));
  // 4 experts for 3: a part of 2 would be too much.
  EXPECT_EQ(even_cuts(row_of({{4, 20, 20}}), 1600, 3, 1), (Cuts{0, 540, 1060, 1600}));
}

TEST(EvenCuts, GroupsOfPartsThatAreSmallerThanExpertsHaveWholeOnes) {
  const auto num_inside = [](const Cuts& cuts, size_t size) {
    int64_t num = 0;
    for (size_t i = 0; i < cuts.size(); i += size) num += cuts[i] % 64 != 0;
    return num;
  };
  // Parts of 1.875 experts, of which 8 make 15, while 4 would be 7 or 8.
  const std::vector<Stretch> row = row_of({{40, 8, 8}, {20, 8, 8}});
  const Cuts groups = even_cuts(row, 3840, 32, 1);
  EXPECT_EQ(num_inside(groups, 8), 0);
  EXPECT_GT(num_inside(groups, 4), 0);
  // Parts of 4.05: groups of 2 would be of 8 or 9, 1.11 times the mean, those of 4 of 16 or 17,
  // 1.05 times; those of 8 are of 32 or 33, 1.02 times.
  const Cuts uneven = even_cuts(row_of({{324, 8, 8}}), 324 * 64, 80, 1);
  EXPECT_EQ(num_inside(uneven, 8), 0);
  EXPECT_GT(num_inside(uneven, 4), 0);
}

// The parts of a matrix that tp ranks have do not join where one of them is cut.
TEST(EvenCuts, GroupsHaveWholeMatrices) {
  const std::vector<Stretch> row = row_of({{10, 8, 8}, {16, 8}, {10, 8, 8}});  // experts: 10, 2, 10
  const int64_t end = row.back().end;
  EXPECT_EQ(even_cuts(row, end, 2, 1), (Cuts{0, 704, end}))
      << "no cut beside the matrix is within 1.05 of the mean";
  const std::vector<Stretch> small = row_of({{40, 8, 8}, {16, 8}, {40, 8, 8}});
  EXPECT_EQ(even_cuts(small, small.back().end, 2, 1), (Cuts{0, 2560, small.back().end}));
}

TEST(EvenCuts, GroupsAreCutBetweenRowsOfAMatrixThatIsHeavierThanOne) {
  // Parts of 41.25 rows or 5.16 experts; groups of 4 are of 165 rows or 20 or 21 experts.
  const std::vector<Stretch> row = row_of({{1000, 8}, {40, 8, 8}});
  const Cuts cuts = even_cuts(row, row.back().end, 32, 1);
  for (size_t i = 0; i < cuts.size(); i += 4)
    EXPECT_EQ(cuts[i] % (cuts[i] < 8000 ? 8 : 64), 0) << "cut " << i << " at " << cuts[i];
  EXPECT_EQ(cuts[4], 1320);
}

TEST(EvenCuts, GoByWeight) {
  std::vector<Stretch> row = row_of({{100, 10}, {100, 10}});
  row[0].weight = 3;
  EXPECT_EQ(even_cuts(row, 2000, 4, 1), (Cuts{0, 330, 660, 1000, 2000}));
}

TEST(EvenCuts, OfAPartOfATensorFallOnTheRowsOfTheWhole) {
  // Elements 5 to 997 of [100, 10]: its rows begin at 5, 15, ... of the row of tensors.
  EXPECT_EQ(even_cuts(std::vector<Stretch>{{0, 992, {100, 10}, 5}}, 992, 2, 1),
            (Cuts{0, 495, 992}));
}

TEST(EvenCuts, MorePartsThanElementsLeaveSomeEmpty) {
  const Cuts cuts = even_cuts(row_of({{3, 16}}), 48, 7, 16);
  EXPECT_EQ(cuts.front(), 0);
  EXPECT_EQ(cuts.back(), 48);
  EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
}

// Any row: cuts ascend, are aligned, and no part weighs more than it may.
TEST(EvenCuts, KeepEveryPartWithinItsBound) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const int64_t align = round % 2 ? 16 : 1;
    std::vector<Shape> shapes;
    for (size_t n = 1 + random() % 6; shapes.size() < n;) {
      const auto extent = [&](int most) { return int64_t(1 + random() % size_t(most)); };
      if (random() % 3 == 0)
        shapes.push_back({extent(200)});
      else if (random() % 2)
        shapes.push_back({extent(40), extent(40)});
      else
        shapes.push_back({extent(16), extent(12), extent(12)});
    }
    std::vector<Stretch> row = row_of(shapes, align);
    int64_t all = 0, most = 1;
    for (Stretch& s : row) {
      s.weight = 1 + int64_t(random() % 3);
      most = std::max(most, s.weight);
      all += s.shape.numel() * s.weight;
    }
    const int64_t end = (row.back().end + align - 1) / align * align;
    const int64_t num_parts = 1 + int64_t(random() % 20);
    const Cuts cuts = even_cuts(row, end, num_parts, align);
    ASSERT_EQ(int64_t(cuts.size()), num_parts + 1);
    EXPECT_EQ(cuts.front(), 0);
    EXPECT_EQ(cuts.back(), end);
    const double mean = double(all) / double(num_parts);
    // Where no border is in reach, a cut may be up to `align` elements late.
    const double bound =
        std::max(kMaxPartWeight * mean, mean + double(align * most)) + double(align * most);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      ASSERT_LE(cuts[i], cuts[i + 1]);
      EXPECT_EQ(cuts[i] % align, 0);
      double weight = 0;
      for (const Stretch& s : row)
        weight += double(s.weight * std::max<int64_t>(0, std::min(s.end, cuts[i + 1]) -
                                                             std::max(s.begin, cuts[i])));
      EXPECT_LE(weight, bound) << "part " << i << " of " << num_parts;
    }
  }
}

}  // namespace
}  // namespace ashlar
