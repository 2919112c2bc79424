#include "ashlar/machine/curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace ashlar::machine {
namespace {

// Points of T = alpha + k S / B at powers of two from 64 B to 1 GiB, times 1 + noise.
std::vector<CurvePoint> curve_of(double alpha_us, double gbps, double factor, double noise,
                                 unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<CurvePoint> points;
  for (double size = 64; size <= double(1 << 30); size *= 2) {
    const double t = (alpha_us + factor * size / gbps * 1e-3) * (1 + normal(generator));
    points.push_back({size, t, t, t});
  }
  return points;
}

TEST(Curve, RecoversTheLawFromNoise) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    for (const auto& [alpha, gbps] : {std::pair{50.0, 300.0}, {3.0, 12.0}, {15.0, 50.0}}) {
      const auto points = curve_of(alpha, gbps, 1.75, 0.03, seed);
      const auto law = fit(points, 1.75);
      ASSERT_TRUE(law);
      EXPECT_NEAR(law->alpha_us() / alpha, 1, 0.05) << "seed " << seed;
      EXPECT_NEAR(law->gbps() / gbps, 1, 0.05) << "seed " << seed;
      for (const double share : {0.90, 0.95}) {
        const auto size = saturating_size(points, share);
        ASSERT_TRUE(size);
        const double exact = saturating_size(alpha, gbps, 1.75, share);
        EXPECT_LE(std::abs(std::log2(*size / exact)), 1) << "seed " << seed << " share " << share;
      }
    }
  }
}

TEST(Curve, SaturatingSizeOfTheLaw) {
  EXPECT_NEAR(saturating_size(50, 300, 1.75, 0.90) * 1e-6, 77.142857, 1e-6);
  EXPECT_NEAR(saturating_size(50, 300, 1.75, 0.95) * 1e-6, 162.857143, 1e-6);
}

TEST(Curve, SaturationNeedsEveryLargerSize) {
  const std::vector<CurvePoint> points = {
      {100, 1, 1, 1}, {200, 1, 1, 1}, {400, 4, 4, 4}, {800, 4, 4, 4}, {1600, 8, 8, 8}};
  EXPECT_EQ(saturating_size(points, 0.9), 800);  // 200 is as fast, but 400 is not
}

TEST(Curve, OutliersDoNotMoveTheLaw) {
  auto points = curve_of(20, 40, 1, 0.01, 7);
  points[9].median_us *= 6;
  points[15].median_us *= 3;
  const auto law = fit(points, 1);
  ASSERT_TRUE(law);
  EXPECT_NEAR(law->alpha_us() / 20, 1, 0.05);
  EXPECT_NEAR(law->gbps() / 40, 1, 0.05);
  EXPECT_GT(law->largest_error, 0.5);
}

// An eager protocol up to 64 KiB, and a rendezvous of three times the latency behind it.
TEST(Curve, ProtocolsAreSegments) {
  std::vector<CurvePoint> points;
  for (double size = 8; size <= double(1 << 26); size *= 2) {
    const double t = size <= 65536 ? 2 + size / 3e3 : 90 + size / 20e3;
    points.push_back({size, t, t, t});
  }
  const auto law = fit(points, 1);
  ASSERT_TRUE(law);
  ASSERT_EQ(law->segments.size(), 2u);
  EXPECT_EQ(law->segments[1].from, 131072);
  EXPECT_NEAR(law->alpha_us(), 2, 0.01);
  EXPECT_NEAR(law->segments[1].alpha_us, 90, 1);
  EXPECT_NEAR(law->gbps(), 20, 0.1);
  EXPECT_NEAR(law->time_us(1024, 1), 2 + 1024 / 3e3, 0.01);
  EXPECT_NEAR(law->time_us(double(1 << 24), 1), 90 + (1 << 24) / 20e3, 5);
}

TEST(Curve, MakesNothingUp) {
  const std::vector<CurvePoint> three = {{1, 1, 1, 1}, {2, 1, 1, 1}, {4, 1, 1, 1}};
  EXPECT_FALSE(fit(three, 1));
  EXPECT_FALSE(saturating_size(std::vector<CurvePoint>(), 0.9));
  EXPECT_FALSE(latency_floor_us(std::vector<CurvePoint>{{4096, 1, 1, 1}}));
  EXPECT_FALSE(interpolated_us(three, 5));
  EXPECT_FALSE(interpolated_us(three, 0.5));
  const std::vector<CurvePoint> flat = {{1, 5, 5, 5}, {2, 5, 5, 5}, {4, 5, 5, 5}, {8, 5, 5, 5}};
  const auto law = fit(flat, 1);
  ASSERT_TRUE(law);
  EXPECT_EQ(law->gbps(), 0);  // no bandwidth shows in times that do not grow
  EXPECT_DOUBLE_EQ(law->time_us(1e9, 1), 5);
}

TEST(Curve, LatencyFloorAndInterpolation) {
  const auto points = curve_of(50, 300, 1, 0, 0);
  EXPECT_NEAR(*latency_floor_us(points), 50, 0.01);
  EXPECT_EQ(*interpolated_us(points, 128), points[1].median_us);
  const double between = *interpolated_us(points, 3e8);
  EXPECT_NEAR(between / (50 + 3e8 / 300e3), 1, 0.01);
}

TEST(Curve, OrderOfPointsDoesNotMatter) {
  auto points = curve_of(50, 300, 1.75, 0.03, 3);
  const auto before = fit(points, 1.75);
  std::shuffle(points.begin(), points.end(), std::mt19937(1));
  const auto after = fit(points, 1.75);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(before->alpha_us(), after->alpha_us());
  EXPECT_EQ(before->gbps(), after->gbps());
}

}  // namespace
}  // namespace ashlar::machine
