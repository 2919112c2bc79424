#include "ashlar/report/run_page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/report/find_item.h"
#include "tests/support/errors.h"

namespace ashlar::report {
namespace {

std::string step_row(int step, double loss) {
  return fmt::format(
      "{{\"step\":{},\"samples\":4,\"tokens\":{},\"loss\":{},\"lr\":3e-05,\"gradient_norm\":1.5,"
      "\"load_entropy\":0.9,\"max_load\":1.8,\"applied\":true,\"skipped\":0,\"step_s\":0.25,"
      "\"data_stall_s\":0.0,\"checkpoint_blocked_s\":1e-06,\"tokens_per_s\":8192,\"tflops\":0.04,"
      "\"mfu\":0.5,\"mfu_convention\":\"exact-causal\",\"memory_peak_bytes\":598502592}}\n",
      step, 2048 * step, loss);
}

TEST(RunRows, ReadsStepsAndEvents) {
  const RunRows rows =
      read_rows("{\"event\":\"start\",\"step\":0,\"isa\":\"amx\"}\n" + step_row(1, 9) +
                step_row(2, 8) + "{\"event\":\"evaluation\",\"step\":2,\"validation_loss\":8.5}\n" +
                "{\"step\":3,\"loss\":null,\"odd\":\"a b\",\"applied\":false}\n");
  ASSERT_EQ(rows.num_steps(), 3u);
  EXPECT_EQ(rows.of(StepColumn::kLoss)[1], 8);
  EXPECT_EQ(rows.of(StepColumn::kTokens)[1], 4096);
  EXPECT_EQ(rows.of(StepColumn::kMemoryPeakBytes)[0], 598502592);
  EXPECT_TRUE(std::isnan(rows.of(StepColumn::kLoss)[2]));
  ASSERT_EQ(rows.events.size(), 2u);
  EXPECT_EQ(rows.events[1]["validation_loss"], 8.5);
  EXPECT_EQ(rows.num_damaged, 0);
}

TEST(RunRows, KeysInAnyOrder) {
  const RunRows rows = read_rows("{\"mfu\":0.5,\"step\":7,\"loss\":2}\n");
  ASSERT_EQ(rows.num_steps(), 1u);
  EXPECT_EQ(rows.of(StepColumn::kStep)[0], 7);
  EXPECT_EQ(rows.of(StepColumn::kMfu)[0], 0.5);
}

TEST(RunRows, LaterRowsOfAStepCountAndTornLinesDoNot) {
  const RunRows rows =
      read_rows(step_row(1, 9) + step_row(2, 8) + step_row(3, 7) + step_row(2, 6) +
                "{\"step\":3,\"lo\n" + "[1]\n" + "{}\n" + "{\"step\":3,\"loss\":5");
  ASSERT_EQ(rows.num_steps(), 2u);
  EXPECT_EQ(rows.of(StepColumn::kLoss)[1], 6);
  EXPECT_EQ(rows.num_damaged, 3);
}

TEST(RunRows, KeepsSomeOfManyLoads) {
  std::string text;
  for (int step = 1; step <= 5000; ++step)
    text += fmt::format("{{\"event\":\"expert_loads\",\"step\":{},\"blocks\":{{}}}}\n", step);
  const RunRows rows = read_rows(text);
  ASSERT_LE(rows.events.size(), 500u);
  EXPECT_GE(rows.events.size(), 400u);
  EXPECT_EQ(rows.events.front()["step"], 1);
  EXPECT_EQ(rows.events.back()["step"], 5000);
}

RecordedRun small_run() {
  RecordedRun run;
  run.name = "nano";
  run.recipe = "[run]\nname = \"nano\"\n";
  std::string text =
      "{\"event\":\"start\",\"step\":0,\"isa\":\"amx\",\"cpu\":\"Xeon\",\"cpus\":4,"
      "\"memory_bytes\":17179869184,\"host\":\"n07\",\"ranks\":2,\"threads\":2}\n";
  for (int i = 1; i <= 50; ++i) text += step_row(i, 9 - i * 0.1);
  text += "{\"event\":\"memory\",\"step\":0,\"tags\":{\"weights\":1048576,\"saved\":2097152}}\n";
  text += "{\"event\":\"expert_loads\",\"step\":10,\"blocks\":{\"0\":[1,3],\"1\":[2,2]}}\n";
  text += "{\"event\":\"evaluation\",\"step\":50,\"validation_loss\":4.5}\n";
  text +=
      "{\"event\":\"checkpoint\",\"step\":50,\"phases\":{\"copy\":{\"median_s\":0.09,\"max_s\":0.1,"
      "\"rank\":1},\"write\":{\"max_"
      "s\":0.2}},\"slow\":[{\"rank\":3,\"host\":\"n07\",\"phase\":\"write\",\"seconds\":0.2,"
      "\"median_s\":0.01}]}\n";
  text += "{\"event\":\"skip\",\"step\":20,\"reason\":\"loss <b>\"}\n";
  run.rows = read_rows(text);
  return run;
}

TEST(RunPage, HasChartsForWhatTheRowsHold) {
  const RecordedRun run = small_run();
  const Page page = run_page({&run, 1});
  const auto* loss = item_of<LineChart>(page, "Loss over steps");
  ASSERT_TRUE(loss);
  ASSERT_EQ(loss->lines.size(), 2u);
  EXPECT_EQ(loss->lines[0].points.size(), 50u);
  EXPECT_EQ(loss->lines[1].name, "validation loss");
  const auto* experts = item_of<HeatMap>(page, "Load of every expert, block 0");
  ASSERT_TRUE(experts);
  EXPECT_EQ(experts->values, (std::vector<double>{0.5, 1.5}));
  const auto* overview =
      item_of<HeatMap>(page, "Load of every expert in the second half of the run");
  ASSERT_TRUE(overview);
  EXPECT_EQ(overview->values, (std::vector<double>{0.5, 1.5, 1, 1}));
  EXPECT_EQ(page.facts[0].second, "2 ranks on n07: Xeon, 4 CPUs, 16.00 GiB, kernels of amx");
  const auto* saves = item_of<BarChart>(page, "Phases of saves, each by its slowest rank");
  ASSERT_TRUE(saves);
  EXPECT_EQ(saves->series[1].second, std::vector<double>{200});
  const auto* memory = item_of<BarChart>(page, "Memory of rank 0 by purpose");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->series.size(), 2u);
  EXPECT_EQ(loss->marks.at(0).name, "skipped");
  const auto* ranks = item_of<PageTable>(page, "Saves by phase and rank");
  ASSERT_TRUE(ranks);
  EXPECT_EQ(ranks->rows[0], (std::vector<std::string>{"50", "copy", "90", "100", "1"}));
  EXPECT_TRUE(item_of<PageTable>(page, "Ranks that took much longer than others in a save"));
  EXPECT_FALSE(item_of<LineChart>(page, "Losses of routers"));
  const std::string html = to_html(page);
  EXPECT_NE(html.find("loss &lt;b&gt;"), std::string::npos);
  EXPECT_NE(html.find("name = &quot;nano&quot;"), std::string::npos);
}

TEST(RunPage, RunsOverEachOther) {
  RecordedRun runs[2] = {small_run(), small_run()};
  runs[1].name = "other";
  const Page page = run_page(runs);
  const auto* loss = item_of<LineChart>(page, "Loss over steps");
  ASSERT_TRUE(loss);
  ASSERT_EQ(loss->lines.size(), 4u);
  EXPECT_EQ(loss->lines[2].name, "loss of other");
  const auto* facts = item_of<PageTable>(page, "");
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->columns[2], "Steps");
  EXPECT_EQ(facts->rows[1][0], "other");
  EXPECT_EQ(facts->rows[1][2], "50");
}

TEST(RunPage, LongRunsShowTheirTrendAndEverySpike) {
  RecordedRun run;
  run.name = "long";
  std::string text = step_row(1, 9);
  for (int i = 2; i <= 1000; ++i) text += step_row(i, i == 500 ? 400 : 4 + i % 3);
  run.rows = read_rows(text);
  const Page alone = run_page({&run, 1});
  const auto* loss = item_of<LineChart>(alone, "Loss over steps");
  ASSERT_TRUE(loss);
  EXPECT_TRUE(loss->y.log) << "a spike would flatten the rest";
  ASSERT_EQ(loss->lines.size(), 2u);
  EXPECT_TRUE(loss->lines[0].faint);
  EXPECT_EQ(loss->lines[0].points[499].second, 400);
  EXPECT_EQ(loss->lines[1].name, "mean of 10 steps");
  EXPECT_EQ(loss->lines[1].points.size(), 100u);
  EXPECT_FALSE(item_of<LineChart>(alone, "Tokens per second")->y.log);
  RecordedRun runs[2] = {run, run};
  runs[1].name = "other";
  const auto* both = item_of<LineChart>(run_page(runs), "Loss over steps");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->lines[2].guide_of, 3) << "single values behind the means of their run";
  EXPECT_EQ(both->lines[3].name, "loss of other");
}

// A start that goes on from an earlier step does its steps again; its rows alone are drawn, in the
// order of steps, and the page shows where it went on.
TEST(RunPage, AResumedRunDrawsNoLineBack) {
  RecordedRun run;
  run.name = "resumed";
  std::string text;
  for (int i = 1; i <= 30; ++i) text += step_row(i, 9);
  text += "{\"event\":\"resume\",\"step\":20}\n";
  for (int i = 21; i <= 40; ++i) text += step_row(i, 5);
  run.rows = read_rows(text);
  const auto page = run_page({&run, 1});
  const auto* loss = item_of<LineChart>(page, "Loss over steps");
  ASSERT_TRUE(loss);
  const auto& points = loss->lines[0].points;
  EXPECT_EQ(points.size(), 40u);
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; }));
  EXPECT_EQ(points[20].second, 5);
  ASSERT_EQ(loss->marks.size(), 1u);
  EXPECT_EQ(loss->marks[0].x, 20);
  EXPECT_EQ(loss->marks[0].name, "resumed");
}

TEST(RunPage, RefusesADirectoryWithoutRows) {
  const auto files = memory_files();
  EXPECT_NE(testing_support::message_of(ErrorKind::kData, [&] { read_run(*files, "nowhere"); })
                .find("nowhere: no metrics.jsonl"),
            std::string::npos);
  files->make_directories("empty");
  write_text(*files, "empty/metrics.jsonl", "");
  EXPECT_NE(testing_support::message_of(ErrorKind::kData, [&] { read_run(*files, "empty"); })
                .find("no row of a step"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::report
