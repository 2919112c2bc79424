#include "ashlar/report/reports.h"

#include <gtest/gtest.h>

#include <span>

#include "ashlar/core/checksum.h"
#include "tests/report/find_item.h"
#include "tests/report/samples.h"
#include "tests/support/errors.h"

namespace ashlar::report {
namespace {

std::unique_ptr<FileSystem> sample_files() {
  auto files = memory_files();
  files->make_directories("run");
  write_text(*files, "run/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
  write_text(*files, "here.toml", to_toml(sample_profile()));
  write_text(*files, "there.toml", to_toml(sample_profile()));
  write_text(*files, "dp.json", sample_plan(1));
  write_text(*files, "tp.json", sample_plan(2));
  write_text(*files, "other.json", "{}");
  write_text(*files, "notes.txt", "");
  return files;
}

TEST(Reports, KnowWhatPathsHold) {
  const auto files = sample_files();
  EXPECT_EQ(page_of(*files, {"run"}).title, "Run run");
  EXPECT_EQ(page_of(*files, {"here.toml"}).title, "Machine two cores");
  EXPECT_EQ(page_of(*files, {"h100"}).title, "Machine h100");
  EXPECT_EQ(page_of(*files, {"dp.json"}).title, "Plan of nano");
  EXPECT_EQ(page_of(*files, {"here.toml", "h100", "there.toml"}).subtitle,
            "two cores (here.toml), h100, two cores (there.toml)");
  EXPECT_EQ(files_of(*files, "run").size(), 2u);
  EXPECT_EQ(files_of(*files, "dp.json"), std::vector<std::string>{"dp.json"});
  EXPECT_TRUE(files_of(*files, "h100").empty());
}

TEST(Reports, ReadTheKernelsBesideAProfile) {
  const auto files = sample_files();
  const std::string table =
      "op\tdtype\tgroups\trows\tcols\tdepth\tflop\tbytes\tranks\tp10_us\tmedian_us\tp90_us\tn\n"
      "add\tF32\t1\t512\t256\t0\t131072\t1572864\t2\t5.000\t6.000\t7.000\t12\n";
  machine::Profile profile = sample_profile();
  profile.kernels = {"here.kernels.tsv", xxh3_64(std::as_bytes(std::span(table)))};
  files->make_directories("there");
  write_text(*files, "there/here.toml", to_toml(profile));
  const auto text_of_page = [&] { return to_html(page_of(*files, {"there/here.toml"})); };
  EXPECT_NE(text_of_page().find("here.kernels.tsv: no such file"), std::string::npos);
  write_text(*files, "there/here.kernels.tsv", table);
  EXPECT_NE(text_of_page().find("1 distinct calls of a step"), std::string::npos);
  write_text(*files, "there/here.kernels.tsv", table + "\n");
  EXPECT_NE(text_of_page().find("not the table that the profile names"), std::string::npos);
}

TEST(Reports, CompareWithABaseline) {
  const auto files = sample_files();
  EXPECT_EQ(page_of(*files, {"here.toml"}, "h100").sections.at(1).heading,
            "Changes since an earlier profile");
  const auto message = [&](const std::string& path, const std::string& baseline) {
    return testing_support::message_of(ErrorKind::kConfig,
                                       [&] { page_of(*files, {path}, baseline); });
  };
  EXPECT_NE(message("here.toml", "dp.json").find("--baseline dp.json: not a profile"),
            std::string::npos);
  EXPECT_NE(message("run", "here.toml").find("--baseline compares profiles"), std::string::npos);
}

TEST(Reports, RefusePathsThatDoNotGoTogether) {
  const auto files = sample_files();
  const auto message = [&](ErrorKind kind, const std::vector<std::string>& paths) {
    return testing_support::message_of(kind, [&] { page_of(*files, paths); });
  };
  EXPECT_EQ(message(ErrorKind::kConfig, {"run", "h100"}),
            "1 runs, 1 profiles and 0 plans do not go on one page; expected paths of one kind, or "
            "plans with one profile");
  EXPECT_NE(message(ErrorKind::kData, {"nowhere"}).find("h100"), std::string::npos);
  EXPECT_NE(message(ErrorKind::kData, {"other.json"}).find("other.json: no plan"),
            std::string::npos);
  EXPECT_NE(message(ErrorKind::kConfig, {"notes.txt"}).find("notes.txt: neither"),
            std::string::npos);
}

TEST(PlanPage, ShowsEveryClassOfRanks) {
  const auto files = sample_files();
  const Page page = page_of(*files, {"dp.json"});
  const auto* memory = item_of<BarChart>(page, "Memory of a rank by tag");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->categories, (std::vector<std::string>{"rank 0", "3 ranks, as rank 1"}));
  ASSERT_EQ(memory->series.size(), 2u);
  EXPECT_TRUE(item_of<BarChart>(page, "Bytes that a rank receives in a step, by axis"));
  EXPECT_TRUE(item_of<BarChart>(page, "Arithmetic of a rank's step, by kernel"));
  EXPECT_FALSE(item_of<BarChart>(page, "Least time of a rank's step"));
}

TEST(PlanPage, ShowsLeastTimesOnAMachine) {
  const auto files = sample_files();
  const Page page = page_of(*files, {"dp.json", "tp.json", "here.toml"});
  const auto* times = item_of<BarChart>(page, "Least time of a rank's step");
  ASSERT_TRUE(times);
  EXPECT_EQ(times->categories, (std::vector<std::string>{"dp 4, zero 1", "dp 2 x tp 2, zero 1"}));
  EXPECT_NEAR(times->series[0].second[0], 5e9 / 4.4e12 * 1e3, 1e-9);
  EXPECT_NEAR(times->series[1].second[0], 2.999e9 / 26.9e9 * 1e3, 1e-9);
  EXPECT_NEAR(times->series[2].second[0], 3e6 / 12.5e9 * 1e3, 1e-9);
}

TEST(PlanPage, ShowsASearchAndASimulation) {
  const auto files = sample_files();
  write_text(*files, "search.json", sample_search());
  write_text(*files, "step.json", sample_simulation());
  const Page page = page_of(*files, {"search.json"});
  EXPECT_EQ(page.title, "Search for nano on 4 ranks of two cores");
  const auto* best = item_of<BarChart>(page, "Time of a step, mean of the ranks");
  ASSERT_TRUE(best);
  EXPECT_EQ(best->categories.size(), 2u);
  EXPECT_DOUBLE_EQ(best->series[0].second[0], 400);
  const auto* slower = item_of<BarChart>(page, "Slower than the best layout");
  ASSERT_TRUE(slower);
  EXPECT_EQ(slower->categories, (std::vector<std::string>{"parallel.zero=3", "parallel.tp=2"}));
  const auto* memory = item_of<BarChart>(page, "Memory of a rank by tag");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->categories, (std::vector<std::string>{"1 as 0", "3 as 1"}));
  EXPECT_TRUE(item_of<BarChart>(page, "Change of the best layout's time by 10 % of a number"));
  const Page step = page_of(*files, {"step.json"});
  const auto* ranks = item_of<BarChart>(step, "Where the time of a step goes");
  ASSERT_TRUE(ranks);
  EXPECT_DOUBLE_EQ(ranks->series[0].second[1], 450);
  EXPECT_NE(testing_support::message_of(ErrorKind::kData,
                                        [&] {
                                          page_of(*files, {"step.json", "dp.json"});
                                        })
                .find("dp.json: neither a search nor a simulated step"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::report
