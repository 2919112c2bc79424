// The timing of a start adds up, and names the parts of a real one.
#include "ashlar/train/start_timing.h"

#include <gtest/gtest.h>

#include <thread>

#include "ashlar/train/start.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

// The numbers of column `ms` by the first words of their lines; kernels are left out.
std::vector<std::pair<std::string, double>> rows_of_text(const std::string& text) {
  std::vector<std::pair<std::string, double>> rows;
  for (const std::string& line : split(text, '\n'))
    if (line.size() > 42 - 1 && !line.starts_with(" ") && !line.starts_with("start "))
      rows.emplace_back(line.substr(0, line.find("  ")), std::stod(line.substr(32, 10)));
  return rows;
}

void expect_sum(const std::string& text) {
  const auto rows = rows_of_text(text);
  ASSERT_GE(rows.size(), 3u) << text;
  EXPECT_EQ(rows.back().first, "to the end of the first step") << text;
  double sum = 0;
  for (size_t i = 0; i + 1 < rows.size(); ++i) sum += rows[i].second;
  EXPECT_NEAR(sum, rows.back().second, 0.05 * double(rows.size()) + 0.05) << text;  // rounding
}

TEST(StartTiming, PartsAndWhatIsUnaccountedAddUpToTheWhole) {
  using namespace std::chrono_literals;
  StartTiming timing;
  timing.enter("one");
  std::this_thread::sleep_for(20ms);
  timing.enter("two");
  timing.enter("one");
  std::this_thread::sleep_for(10ms);
  timing.leave();
  std::this_thread::sleep_for(15ms);
  Trace trace;
  trace.start();
  const int64_t event = trace.begin({.name = trace.index_of("pack")});
  trace.end(event);
  timing.finish(trace);
  timing.enter("later");  // a step after the first
  const std::string text = timing.text();
  expect_sum(text);
  const auto rows = rows_of_text(text);
  ASSERT_EQ(rows.size(), 5u) << text;
  EXPECT_EQ(rows[0].first, "loading the program");
  EXPECT_EQ(rows[1].first, "one");
  EXPECT_GE(rows[1].second, 30.0);
  EXPECT_EQ(rows[2].first, "two");
  EXPECT_EQ(rows[3].first, "unaccounted");
  EXPECT_GE(rows[3].second, 15.0);
  EXPECT_NE(text.find("\n  pack "), text.npos) << text;
  EXPECT_EQ(trace.events().size(), 0u);
}

TEST(StartTiming, OfARunNamesItsPartsOnce) {
  for (const int num_ranks : {1, 2}) {
    const auto files = posix_files();
    const TemporaryDirectory root;
    std::string logged;
    Log log([&](std::string_view line) { (logged += line) += '\n'; });
    StartTiming timing;
    start_run(
        tiny_run(*files, root, {"train.steps=3", "train.eval_every=0", "checkpoint.every=-1"}),
        *files, log, {.num_ranks = num_ranks, .report = {}, .timing = &timing});
    const size_t begin = logged.find("loading the program");
    ASSERT_NE(begin, logged.npos) << logged;
    EXPECT_EQ(logged.find("loading the program", begin + 1), logged.npos) << logged;
    expect_sum(timing.text());
    for (const char* part :
         {"planning memory", "taking memory", "opening data", "measuring the peak", "weights",
          "first step: data", "first step: forward, backward", "first step: optimizer",
          "kernels of the first step"})
      EXPECT_NE(logged.find(part), logged.npos) << part << "\n" << logged;
  }
}

}  // namespace
}  // namespace ashlar::train
