#include "ashlar/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace ashlar {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers of the authors' Random123 package, kat_vectors, philox 4x32 10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Hashes, KnownValues) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a64("\xff"), (0xcbf29ce484222325u ^ 0xff) * 0x100000001b3u);
  // The first three numbers of the generator from state 0.
  const uint64_t step = 0x9E3779B97F4A7C15u;
  EXPECT_EQ(splitmix64(0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(splitmix64(step), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(splitmix64(2 * step), 0x06C45D188009454Fu);
}

TEST(Rng, DependsOnSeedNameAndIndexOnly) {
  const Rng rng(7, "weights");
  EXPECT_EQ(rng.bits(3), Rng(7, "weights").bits(3));
  std::set<uint64_t> seen;
  for (const uint64_t seed : {0, 1, 7})
    for (const char* name : {"", "weights", "weightt"})
      for (const uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}})
        EXPECT_TRUE(seen.insert(Rng(seed, name).bits(index)).second);
}

TEST(Rng, UniformAndNormalHaveTheirMoments) {
  const Rng rng(1, "moments");
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0, normal_fourth = 0;
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = rng.uniform(uint64_t(i)), z = rng.normal(uint64_t(i));
    ASSERT_TRUE(u >= 0 && u < 1);
    ASSERT_TRUE(std::isfinite(z));
    sum += u;
    squares += u * u;
    normal_sum += z;
    normal_squares += z * z;
    normal_fourth += z * z * z * z;
    beyond_two += std::abs(z) > 2;
  }
  // Five standard errors each.
  const double root = std::sqrt(double(kCount));
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12) / root);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45) / root);
  EXPECT_NEAR(normal_sum / kCount, 0, 5 / root);
  EXPECT_NEAR(normal_squares / kCount, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(normal_fourth / kCount, 3, 5 * std::sqrt(96.0) / root);
  const double tail = std::erfc(std::sqrt(2.0));
  EXPECT_NEAR(beyond_two / double(kCount), tail, 5 * std::sqrt(tail) / root);
}

TEST(Rng, BelowIsInRangeAndEven) {
  const Rng rng(5, "below");
  std::vector<int> counts(7);
  constexpr int kCount = 70000;
  for (int i = 0; i < kCount; ++i) ++counts.at(rng.below(uint64_t(i), counts.size()));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 5 * std::sqrt(10000.0));
  EXPECT_EQ(rng.below(9, 1), 0u);
  // bits * bound / 2^64, rounded down: for a power of two that is the upper bits.
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(rng.below(i, uint64_t{1} << 63), rng.bits(i) >> 1);
  // For the largest bound it is bits - 1 (or 0): floor(b - b / 2^64).
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(rng.below(i, ~uint64_t{0}), rng.bits(i) - 1);
}

class PermutationOf : public testing::TestWithParam<uint64_t> {};

TEST_P(PermutationOf, IsABijection) {
  const uint64_t size = GetParam();
  for (const uint64_t key : {uint64_t{0}, uint64_t{99}, ~uint64_t{0}}) {
    const Permutation permutation(size, key);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << i;
      seen[image] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationOf,
                         testing::Values(1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 64, 65, 100, 255, 256,
                                         257, 999, 1023, 1024, 1025, 4097, 65537));

TEST(Permutation, ReachesEveryPlaceAboutEquallyOften) {
  constexpr uint64_t kSize = 5, kKeys = 20000;
  std::vector<std::vector<int>> counts(kSize, std::vector<int>(kSize));
  for (uint64_t key = 0; key < kKeys; ++key)
    for (uint64_t i = 0; i < kSize; ++i) ++counts[i][Permutation(kSize, key)(i)];
  for (const auto& row : counts)
    for (const int count : row) EXPECT_NEAR(count, kKeys / kSize, 5 * std::sqrt(kKeys * 0.16));
}

TEST(Permutation, ShufflesAndDependsOnTheKey) {
  constexpr uint64_t kSize = 10000;
  const Permutation a(kSize, 1), b(kSize, 2);
  int fixed = 0, equal = 0, neighbours = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    fixed += a(i) == i;
    equal += a(i) == b(i);
    neighbours += i > 0 && a(i) == a(i - 1) + 1;
  }
  // Each is about Poisson with mean 1.
  EXPECT_LT(fixed, 10);
  EXPECT_LT(equal, 10);
  EXPECT_LT(neighbours, 10);
}

TEST(Permutation, WorksForTheLargestSizes) {
  for (const uint64_t size : {(uint64_t{1} << 62) + 1, ~uint64_t{0}}) {
    const Permutation permutation(size, 3);
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < 1000; ++i) {
      images.insert(permutation(i));
      images.insert(permutation(size - 1 - i));
    }
    EXPECT_EQ(images.size(), 2000u);
    EXPECT_LT(*images.rbegin(), size);
  }
}

TEST(PermutationDeathTest, RefusesAnIndexOutside) {
  EXPECT_DEATH(Permutation(3, 0)(3), "index < size_");
}

}  // namespace
}  // namespace ashlar
