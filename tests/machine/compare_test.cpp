#include "ashlar/machine/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace ashlar::machine {
namespace {

// all_reduce from 1 KiB to 1 GiB with a latency of 10 us at 20 GB/s, slowed in a range of sizes.
CollectiveCurve curve_of(double slow_from = 0, double slow_to = 0, double slowdown = 1) {
  CollectiveCurve curve;
  curve.engine = "thread";
  curve.dtype = "F32";
  curve.shape = "all";
  curve.ranks = 8;
  curve.provenance = {Origin::kMeasured, "ashlar bench collectives", "2026-11-26", 0};
  for (double size = 1024; size <= double(1 << 30); size *= 2) {
    const double us =
        (10 + curve.factor() * size / 20e3) * (size >= slow_from && size < slow_to ? slowdown : 1);
    curve.points.push_back({size, 0.99 * us, us, 1.01 * us});
  }
  return curve;
}

Profile profile_of(const CollectiveCurve& curve) {
  Profile profile;
  profile.set(curve);
  profile.set("memory.triad", {20, "GB/s", Origin::kMeasured, "ashlar bench stream", "", 0.01});
  profile.set("launch.wake_idle", {5, "us", Origin::kMeasured, "ashlar bench launch", "", 0.01});
  profile.set("node.cores", {2, "1", Origin::kMeasured, "the system", "", 0});
  return profile;
}

TEST(Compare, TheSameProfileIsGood) {
  const Profile profile = profile_of(curve_of());
  const std::vector<Judgement> judgements = compare(profile, profile);
  EXPECT_EQ(judgements.size(), 2 + 5u);  // numbers, ranges; a fact is no measurement
  for (const Judgement& j : judgements) {
    EXPECT_EQ(j.verdict, Verdict::kGood) << j.name;
    EXPECT_NEAR(*j.ratio, 1, 1e-12) << j.name;
  }
}

// A library that is slow between 64 and 512 MiB alone, which one average would hide.
TEST(Compare, W13NamesTheSlowRangeOfSizes) {
  constexpr double kMiB = 1 << 20;
  const Profile before = profile_of(curve_of()),
                after = profile_of(curve_of(16 * kMiB, 256 * kMiB, 2));
  for (const Judgement& j : compare(after, before)) {
    const bool slow = j.name.find("16.00 MiB to 256.00 MiB") != std::string::npos;
    EXPECT_EQ(j.verdict, slow ? Verdict::kBad : Verdict::kGood) << j.name;
    EXPECT_NEAR(*j.ratio, slow ? 0.5 : 1, 1e-9) << j.name;
  }
}

TEST(Compare, TimesAreBetterWhenSmaller) {
  Profile slower = profile_of(curve_of());
  slower.quantities.at("launch.wake_idle").value = 6.25;
  slower.quantities.at("memory.triad").value = 25;
  const std::vector<Judgement> judgements = compare(slower, profile_of(curve_of()));
  const auto ratio = [&](const char* name) {
    return *std::find_if(judgements.begin(), judgements.end(), [&](const auto& j) {
              return j.name == name;
            })->ratio;
  };
  EXPECT_NEAR(ratio("launch.wake_idle"), 0.8, 1e-12);
  EXPECT_NEAR(ratio("memory.triad"), 1.25, 1e-12);
}

TEST(Compare, DisturbedAndUnstableCurvesGetNoRatioVerdict) {
  CollectiveCurve disturbed = curve_of(0, 1e12, 3);
  disturbed.provenance.foreign_share = 0.2;
  for (const Judgement& j : compare(profile_of(disturbed), profile_of(curve_of())))
    EXPECT_EQ(j.verdict, j.name.starts_with("all_reduce") ? Verdict::kDisturbed : Verdict::kGood)
        << j.name;
  CollectiveCurve unstable = curve_of();
  for (CurvePoint& p : unstable.points) p.p90_us *= 2;
  for (const Judgement& j : compare(profile_of(unstable), profile_of(curve_of())))
    EXPECT_EQ(j.verdict, j.name.starts_with("all_reduce") ? Verdict::kUnstable : Verdict::kGood)
        << j.name;
}

// The verdicts of a file do not depend on the order of its rows.
TEST(Compare, W4IsAPureFunctionOfTheNumbers) {
  const Profile expected = profile_of(curve_of());
  CollectiveCurve curve = curve_of(0, 1 << 20, 1.25);
  std::vector<Judgement> first = compare(profile_of(curve), expected);
  std::mt19937 random(1);
  for (int run = 0; run < 100; ++run) {
    std::shuffle(curve.points.begin(), curve.points.end(), random);
    const std::vector<Judgement> again = compare(profile_of(curve), expected);
    ASSERT_EQ(again.size(), first.size());
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_EQ(again[i].verdict, first[i].verdict);
      EXPECT_NEAR(*again[i].ratio, *first[i].ratio, 1e-9);
    }
  }
}

TEST(Compare, WhatOneLacksIsNamedAndNotJudged) {
  const Profile all = profile_of(curve_of());
  Profile some = all;
  some.quantities.erase("memory.triad");
  some.collectives[0].ranks = 4;
  EXPECT_EQ(compare(all, some).size(), 1u);
  EXPECT_EQ(only_in(all, some),
            (std::vector<std::string>{"memory.triad", "all_reduce F32 on 8 ranks (thread)"}));
  EXPECT_EQ(only_in(some, all), std::vector<std::string>{"all_reduce F32 on 4 ranks (thread)"});
}

}  // namespace
}  // namespace ashlar::machine
