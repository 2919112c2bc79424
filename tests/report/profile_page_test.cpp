#include "ashlar/report/profile_page.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/report/find_item.h"
#include "tests/report/samples.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::Verdict;

TEST(ProfilePage, ShowsEveryCurveWithItsLaw) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  const auto* bandwidth = item_of<LineChart>(page, "all_reduce, F32, thread: bandwidth (busbw)");
  ASSERT_TRUE(bandwidth);
  EXPECT_EQ(bandwidth->lines[0].name, "2 ranks");
  EXPECT_EQ(bandwidth->lines[1].name, "4 ranks");
  EXPECT_NEAR(bandwidth->lines[0].points.back().second, 10, 0.1);
  EXPECT_LT(bandwidth->lines[0].range.back().first, bandwidth->lines[0].range.back().second);
  const auto guides = std::count_if(bandwidth->lines.begin(), bandwidth->lines.end(),
                                    [](const Line& line) { return line.guide_of >= 0; });
  EXPECT_EQ(guides, 4) << "a law and the links' limit for each";
  ASSERT_TRUE(item_of<LineChart>(page, "all_reduce, F32, thread: time"));
  const auto* laws = item_of<PageTable>(page, "Laws and sources of the curves");
  ASSERT_TRUE(laws);
  ASSERT_EQ(laws->rows.size(), 4u) << "barriers too";
  EXPECT_EQ(laws->rows[0][8], "6");   // alpha
  EXPECT_EQ(laws->rows[0][9], "10");  // B
}

TEST(ProfilePage, ShowsRatesThatItDoesNotKnow) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  std::vector<std::string> headings;
  for (const PageSection& section : page.sections) headings.push_back(section.heading);
  EXPECT_EQ(headings, (std::vector<std::string>{
                          "Verdicts", "Limits", "Collectives", "Memory bandwidth", "Products",
                          "Whatever", "Storage", "Numbers", "Calibration by whole runs"}));
  const auto* stream = item_of<LineChart>(page, "GB/s over sizes");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->lines[1].name, "stream triad, 2 threads");
  EXPECT_EQ(stream->x.ticks, Ticks::kBytes);
  ASSERT_TRUE(item_of<LineChart>(page, "tokens/s over tokens"));
  ASSERT_TRUE(item_of<LineChart>(page, "What a kernel can reach"));
  const auto* links = item_of<LineChart>(page, "What the links allow collectives");
  ASSERT_TRUE(links);
  EXPECT_EQ(links->lines[0].points[1], (std::pair<double, double>{4, 12.5}));
  EXPECT_EQ(links->lines[0].points[2], (std::pair<double, double>{8, 20}));
}

TEST(ProfilePage, JudgesByTheLinksAndByAnEarlierProfile) {
  const Profile before = sample_profile();
  Profile now = before;
  now.quantities["memory.triad"].value *= 0.8;
  now.mounts[0].quantities["storage.read"].spread = 0;
  const auto verdict_of = [](const std::vector<machine::Judgement>& all, std::string_view name) {
    for (const machine::Judgement& j : all)
      if (j.name == name) return j.verdict;
    return Verdict::kTimedOut;
  };
  const auto alone = judgements_of(before, nullptr);
  EXPECT_EQ(verdict_of(alone, "all_reduce of F32 over 4 ranks (thread)"), Verdict::kGood);
  EXPECT_EQ(verdict_of(alone, "memory.triad"), Verdict::kUnknown);
  EXPECT_EQ(verdict_of(alone, "storage.read of /data"), Verdict::kUnstable);
  const auto compared = judgements_of(now, &before);
  EXPECT_EQ(verdict_of(compared, "memory.triad"), Verdict::kLow);
  EXPECT_EQ(verdict_of(compared, "storage.read of /data"), Verdict::kGood);
  const std::vector<Profile> both = {before, now};
  EXPECT_EQ(profile_page(both).mood, Mood::kWarning);
}

TEST(ProfilePage, ShowsEveryProfileThatTheProgramCarries) {
  std::vector<Profile> all;
  for (const std::string& name : machine::shipped_names()) {
    all.push_back(machine::parse_profile(machine::shipped_text(name), name));
    const Page page = profile_page({&all.back(), 1});
    EXPECT_TRUE(page.banner.empty()) << name << ": nothing of it was measured";
    EXPECT_NE(to_html(page).find("data-chart"), std::string::npos) << name;
  }
  const Page page = profile_page(all);
  const auto* roofs = item_of<LineChart>(page, "What a kernel can reach");
  ASSERT_TRUE(roofs);
  EXPECT_GE(roofs->lines.size(), all.size());
  EXPECT_TRUE(item_of<PageTable>(page, "Beside each other"));
}

}  // namespace
}  // namespace ashlar::report
