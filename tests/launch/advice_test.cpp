#include "ashlar/launch/advice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace ashlar::launch {
namespace {

Json step_row(double stall_s, double step_s) {
  return {{"step", 1}, {"data_stall_s", stall_s}, {"step_s", step_s}};
}

TEST(StallWatch, NamesAStallOfData) {
  StallWatch watch;
  int told = 0;
  for (int i = 0; i < 50; ++i) told += int(watch.add(step_row(0.02, 0.1)).size());
  EXPECT_EQ(told, 0) << "20 % is no stall";
  for (int i = 0; i < 50; ++i)
    for (const Advice& advice : watch.add(step_row(0.06, 0.1))) {
      ++told;
      EXPECT_EQ(advice.name, "data stall");
    }
  EXPECT_EQ(told, 1) << "one stall is told once";
  for (int i = 0; i < 100; ++i) told += int(watch.add(step_row(0, 0.1)).size());
  for (int i = 0; i < 50; ++i) told += int(watch.add(step_row(0.06, 0.1)).size());
  EXPECT_EQ(told, 2);
}

Json save_row(double write_s, int rank) {
  const Json phase{{"median_s", 0.1}, {"max_s", write_s}, {"rank", rank}};
  return {{"event", "checkpoint"}, {"step", 120}, {"phases", {{"write", phase}}}};
}

TEST(StallWatch, NamesARankWhoseSaveIsSlow) {
  StallWatch watch;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(watch.add(save_row(0.5, 0)).empty());
  EXPECT_TRUE(watch.add(save_row(2.4, 3)).empty()) << "not 5 times the median";
  const std::vector<Advice> advice = watch.add(save_row(2.6, 3));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].name, "slow storage");
  EXPECT_EQ(advice[0].rank, 3);
  EXPECT_EQ(advice[0].text,
            "step 120: the phase write of its save took 2.6 s on rank 3, usually 0.50 s");
}

// A page of a rank that works, or that waits for an operation.
PulsePage page_of(int rank, int64_t step, bool works) {
  PulsePage page;
  page.rank = rank;
  page.step = step;
  if (works) return page;
  page.groups.push_back({1, "dp", 4, 1});
  page.operations.emplace_back().queued_ns = 1;
  page.waits_for = 0;
  return page;
}

// Advice about 4 ranks that work for these shares of the time, after so many samples.
std::vector<Advice> watch_ranks(const std::vector<double>& shares, int num_samples) {
  SlowRanks slow;
  std::mt19937 random(7);
  std::vector<Advice> all;
  for (int i = 0; i < num_samples; ++i) {
    std::map<int, PulsePage> pages;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      const bool works = double(random() % 1000) / 1000 < shares[rank];
      pages[int(rank)] = page_of(int(rank), i / 5, works);
    }
    for (Advice& advice : slow.add(pages)) all.push_back(std::move(advice));
  }
  return all;
}

TEST(SlowRanks, AreThoseForWhichOthersWait) {
  const std::vector<Advice> advice = watch_ranks({0.6, 0.62, 0.95, 0.61}, 1300);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].name, "slow rank");
  EXPECT_EQ(advice[0].rank, 2);
  EXPECT_TRUE(watch_ranks({0.6, 0.62, 0.95, 0.61}, 1000).empty()) << "three windows are needed";
  EXPECT_TRUE(watch_ranks({0.6, 0.63, 0.66, 0.61}, 20'000).empty()) << "even ranks, and chance";
}

TEST(ClockWatch, TellsAJumpOnce) {
  ClockWatch clocks;
  double steady_s = 500, calendar_s = 1.8e9;
  const auto pass = [&](double steady, double calendar) {
    steady_s += steady, calendar_s += calendar;
    const auto advice = clocks.add(steady_s, calendar_s);
    return advice ? advice->text : "";
  };
  EXPECT_EQ(pass(0, 0), "");
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(pass(0.2, 0.2 * 1.0005), "") << "it is slewed";
  EXPECT_TRUE(pass(0.2, 3600.2).starts_with("the clock was set forward by 3600 s"));
  EXPECT_EQ(pass(0.2, 0.2), "");
  EXPECT_TRUE(pass(0.2, -59.8).starts_with("the clock was set back by 60 s"));
  EXPECT_EQ(pass(0.2, 0.2), "");
}

TEST(MetricsTail, TakesRowsAsTheyCome) {
  const auto files = memory_files();
  const auto file = files->append("metrics.jsonl");
  const auto append = [&](const std::string& text) {
    file->write_at(std::as_bytes(std::span(text)), file->size());
  };
  MetricsTail tail(*files, "metrics.jsonl");
  append("{\"step\":1}\n");
  tail.skip();
  append("{\"step\":2}\n{\"st");
  ASSERT_EQ(tail.take().size(), 1u);
  append("ep\":3}\nnonsense\n");
  const std::vector<Json> rows = tail.take();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["step"], 3);
  file->truncate(11);
  EXPECT_TRUE(tail.take().empty());
  append("{\"step\":4}\n");
  EXPECT_EQ(tail.take().size(), 1u);
  append(std::string((2 << 20) + 100, '1') + "\n{\"step\":5}\n");  // a row of more than 1 MiB
  size_t num_rows = 0;
  for (int i = 0; i < 3; ++i) num_rows += tail.take().size();
  EXPECT_EQ(num_rows, 1u);
  EXPECT_TRUE(MetricsTail(*files, "missing").take().empty());
}

}  // namespace
}  // namespace ashlar::launch
