#include "ashlar/report/profile_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/report/find_item.h"
#include "tests/report/samples.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::Verdict;

std::string cell_of(const PageTable& table, size_t row, std::string_view column) {
  for (size_t c = 0; c < table.columns.size(); ++c)
    if (table.columns[c] == column) return table.rows[row][c];
  return "no such column";
}

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
  EXPECT_EQ(cell_of(*laws, 0, "alpha, us"), "6");
  EXPECT_EQ(cell_of(*laws, 0, "B, GB/s"), "10");
  EXPECT_EQ(laws->note.substr(0, 33), "All rows: type: F32; engine: thre") << laws->note;
}

TEST(ProfilePage, ShowsRatesThatItDoesNotKnow) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  std::vector<std::string> headings;
  for (const PageSection& section : page.sections) headings.push_back(section.heading);
  EXPECT_EQ(headings, (std::vector<std::string>{
                          "Verdicts", "Collectives", "Pairs of ranks", "Roofline", "Products",
                          "Memory bandwidth", "Attention", "Launches", "Norms", "Whatever",
                          "Storage", "Kernels", "Numbers", "Calibration by whole runs"}));
  const auto* stream = item_of<LineChart>(page, "GB/s over sizes");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->lines[1].name, "stream triad, 2 threads");
  EXPECT_EQ(stream->x.ticks, Ticks::kBytes);
  ASSERT_TRUE(item_of<BarChart>(page, "tokens/s at 512 tokens")) << "one size needs no axis";
  ASSERT_TRUE(item_of<LineChart>(page, "What a kernel can reach"));
  const auto* links = item_of<LineChart>(page, "What the links allow collectives");
  ASSERT_TRUE(links);
  EXPECT_EQ(links->lines[0].points[1], (std::pair<double, double>{4, 12.5}));
  EXPECT_EQ(links->lines[0].points[2], (std::pair<double, double>{8, 20}));
}

// The section with that heading.
const PageSection& section_of(const Page& page, std::string_view heading) {
  for (const PageSection& section : page.sections)
    if (section.heading == heading) return section;
  throw std::out_of_range(std::string(heading));
}

TEST(ProfilePage, SaysWhatWasNeverMeasured) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  EXPECT_EQ(section_of(page, "Launches").text,
            "Never measured. `ashlar bench launch --profile FILE` does.");
  EXPECT_EQ(section_of(page, "Kernels").text,
            "Never measured. `ashlar bench kernels RECIPE --ranks N --profile FILE` does.");
  EXPECT_EQ(section_of(page, "Products").text, "");
}

TEST(ProfilePage, ShowsEveryPairAndNamesTheSlowOnes) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  const auto* map = item_of<HeatMap>(page, "Bandwidth of 4 MiB messages: 3 ranks, thread");
  ASSERT_TRUE(map);
  EXPECT_TRUE(std::isnan(map->values[0]));
  EXPECT_EQ(map->values[1], 9);
  EXPECT_EQ(map->values[7], 2) << "both ways";
  EXPECT_TRUE(item_of<HeatMap>(page, "Time of 8 B messages: 3 ranks, thread"));
  const auto* slow = item_of<PageTable>(page, "Pairs below 85 % of the median of 8.8 GB/s");
  ASSERT_TRUE(slow);
  ASSERT_EQ(slow->rows.size(), 1u);
  EXPECT_EQ(slow->rows[0][0], "1 and 2");
}

TEST(ProfilePage, PointsOutWhereCurvesBend) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  const auto* bandwidth = item_of<LineChart>(page, "all_reduce, F32, thread: bandwidth (busbw)");
  ASSERT_TRUE(bandwidth);
  ASSERT_EQ(bandwidth->lines[0].spots.size(), 2u);
  // alpha B / k = 6 us x 10 GB/s = 60 kB: 90 % from 540 kB, 95 % from 1.14 MB, in steps of 4.
  EXPECT_EQ(bandwidth->lines[0].spots[0].x, 1 << 19);
  EXPECT_EQ(bandwidth->lines[0].spots[1].name, "saturated to 95 %");
  EXPECT_EQ(bandwidth->lines[0].spots[1].x, 1 << 21);
  const auto* products = item_of<LineChart>(page, "product BF16 K 1024: TFLOP/s over GFLOP");
  ASSERT_TRUE(products);
  EXPECT_EQ(products->lines[0].spots.at(0).x, 0.5);
  const auto* attention = item_of<LineChart>(page, "attention forward D 64: TFLOP/s over tokens");
  ASSERT_TRUE(attention);
  EXPECT_EQ(attention->lines[0].spots.at(0).x, 2048) << "time grows by 1.07 before, 1.93 after";
  const auto* stream = item_of<LineChart>(page, "GB/s over sizes");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->marks.at(0).x, (2 << 20) / 3.0);
  const auto* reads = item_of<LineChart>(page, "Reads that training needs from /data");
  ASSERT_TRUE(reads);  // the example of the paper: 0.234 s a step at scatter 1
  EXPECT_NEAR(reads->lines[0].spots.at(0).x, 0.2340571, 1e-7);
}

TEST(ProfilePage, ComparesRanksOfANodeWithItsLinks) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  const auto* chart = item_of<LineChart>(page, "Largest bandwidth over ranks of a node");
  ASSERT_TRUE(chart);
  ASSERT_EQ(chart->lines.size(), 2u);
  EXPECT_EQ(chart->lines[0].name, "all_reduce, F32, thread");
  EXPECT_EQ(chart->lines[0].points.size(), 2u);
  EXPECT_EQ(chart->lines[1].points.back(), (std::pair<double, double>{4, 12.5}));
  Profile mesh = machine::parse_profile(machine::shipped_text("mi300x-pollara"), "mi300x");
  const auto* law =
      item_of<LineChart>(profile_page({&mesh, 1}), "Largest bandwidth over ranks of a node");
  ASSERT_TRUE(law);
  EXPECT_EQ(law->lines.back().points.back(), (std::pair<double, double>{8, 448})) << "7 x 64 GB/s";
}

TEST(ProfilePage, MapsProductsOverRowsAndColumns) {
  const Profile profile = sample_profile();
  const Page page = profile_page({&profile, 1});
  const auto* map = item_of<HeatMap>(page, "product BF16, depth K = 7,168");
  ASSERT_TRUE(map);
  EXPECT_EQ(map->columns, (std::vector<std::string>{"512", "1,024"}));
  EXPECT_EQ(map->rows, (std::vector<std::string>{"256", "512"}));
  EXPECT_EQ(map->values, (std::vector<double>{2, 2, 2.5, 2.5}));
  EXPECT_EQ(item_of<LineChart>(page, "product BF16 K 1024: TFLOP/s over GFLOP")->lines.size(), 1u);
  EXPECT_FALSE(item_of<LineChart>(page, "TFLOP/s over rows"));
}

TEST(ProfilePage, ShowsTheTableOfKernelsOrWhyNot) {
  Profile profile = sample_profile();
  profile.kernels = {"here.kernels.tsv", 1};
  KernelTimes times{
      {{"linear_forward", "BF16", 1, 512, 256, 64, 16777216, 400000, 2, 10, 11, 12, 44},
       {"add", "F32", 1, 512, 256, 0, 131072, 1572864, 2, 5, 6, 7, 12}},
      ""};
  const Page page = profile_page({&profile, 1}, {{&times, 1}});
  const auto* table = item_of<PageTable>(page, "Calls that take most of the time");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->rows[0][0], "linear_forward");
  EXPECT_EQ(table->rows[0].back(), "87.1 %");
  const auto* roof = item_of<LineChart>(page, "What a kernel can reach");
  ASSERT_TRUE(roof);
  EXPECT_TRUE(roof->lines.back().scattered);
  times = {{}, "here.kernels.tsv: not the table that the profile names"};
  EXPECT_NE(
      section_of(profile_page({&profile, 1}, {{&times, 1}}), "Kernels").text.find("not the table"),
      std::string::npos);
}

TEST(ProfilePage, FlagsRegressionsAgainstABaseline) {
  const Profile before = sample_profile();
  Profile now = before;
  now.name = "later";
  now.identity["kernel"] = "6.1";
  now.quantities["memory.triad"].value *= 0.94;
  now.quantities["compute.sustained_bf16"].value *= 0.96;
  const Page page = profile_page({&now, 1}, {{}, &before});
  const PageSection& changes = section_of(page, "Changes since an earlier profile");
  EXPECT_NE(changes.text.find("1 of them more than 5 % worse"), std::string::npos) << changes.text;
  EXPECT_NE(changes.text.find("another machine"), std::string::npos);
  const auto& numbers = std::get<PageTable>(changes.items.at(0));
  EXPECT_EQ(numbers.rows[0][0], "memory.triad");
  EXPECT_EQ(numbers.rows[0][1], "6.0 % worse");
  EXPECT_EQ(numbers.rows[0][2], "regression");
  EXPECT_EQ(numbers.rows[1][2], "") << "4 % is no regression";
  EXPECT_EQ(std::get<PageTable>(changes.items.at(1)).rows[0],
            (std::vector<std::string>{"kernel", "unknown", "6.1"}));
  EXPECT_EQ(page.mood, Mood::kWarning);
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
