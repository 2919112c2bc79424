#include "ashlar/report/run_device.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ashlar/report/run_page.h"
#include "tests/report/find_item.h"

namespace ashlar::report {
namespace {

std::string slice(const char* category, const char* name, double duration_us, const char* args) {
  return fmt::format(
      "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":\"{}\",\"dur\":{},\"args\":{{{}}}}},\n", category,
      name, duration_us, args);
}

// Two steps of 10 ms.  Of the slices of `kernel` none counts: they are launches.
std::string trace_text(const std::string& about) {
  const char* product =
      "\"phase\":\"forward\",\"flop\":4000000000,\"bytes\":1000000,\"launches\":1";
  const char* backward =
      "\"phase\":\"backward\",\"flop\":2000000000,\"bytes\":3000000,\"launches\":2";
  const char* update = "\"phase\":\"optimizer\",\"flop\":0,\"bytes\":2000000,\"launches\":1";
  std::string text = "{\"otherData\":{" + about + "},\"traceEvents\":[\n";
  for (int step = 4; step < 6; ++step)
    text +=
        slice("step", "step", 10000, "\"step\":4") + slice("kernel", "linear_forward", 7, product) +
        slice("device", "linear_forward", 2000, product) +
        slice("device", "linear_forward", 1000, backward) + slice("device", "adamw", 4000, update);
  text.resize(text.size() - 2);
  return text + "\n]}\n";
}

constexpr const char* kOfGpu = "\"first_step\":4,\"device\":\"h200\"";

std::unique_ptr<FileSystem> files_with(const std::string& name, const std::string& text) {
  auto files = memory_files();
  files->make_directories("run/trace");
  write_text(*files, "run/metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  write_text(*files, "run/trace/" + name, text);
  return files;
}

TEST(RunDevice, ShowsTheTimeOfTheGpuByFunctionAndPhase) {
  const auto files = files_with("steps-4-5-rank-0.json", trace_text(kOfGpu));
  const Page page = run_page(*files, {"run"});
  const auto* table = item_of<PageTable>(page, "Functions on the GPU");
  ASSERT_TRUE(table);
  using Row = std::vector<std::string>;
  ASSERT_EQ(table->rows.size(), 2u);  // the longest first
  EXPECT_EQ(table->rows[0], (Row{"adamw", "1", "1", "4", "40.0 %", "", "0.5"}));
  EXPECT_EQ(table->rows[1], (Row{"linear_forward", "2", "3", "3", "30.0 %", "2", "1.333"}));
  EXPECT_NE(table->note.find("2 steps from step 4 on, on h200. A step takes 10 ms"),
            std::string::npos)
      << table->note;
  EXPECT_NE(table->note.find("70.0 %"), std::string::npos) << table->note;
  const auto* chart = item_of<BarChart>(page, "Time of the GPU by phase and function");
  ASSERT_TRUE(chart);
  EXPECT_EQ(chart->categories, (Row{"forward", "backward", "optimizer"}));
  ASSERT_EQ(chart->series.size(), 2u);
  EXPECT_EQ(chart->series[0].second, (std::vector<double>{0, 0, 4}));  // adamw
  EXPECT_EQ(chart->series[1].second, (std::vector<double>{2, 1, 0}));
}

TEST(RunDevice, TakesTheLastTraceOfRankZero) {
  const auto files = files_with("steps-4-5-rank-0.json", trace_text(kOfGpu));
  write_text(*files, "run/trace/steps-12-13-rank-0.json",
             trace_text("\"first_step\":12,\"device\":\"h100\""));
  write_text(*files, "run/trace/steps-20-21-rank-1.json", "not read");
  EXPECT_EQ(read_device_times(*files, "run").first_step, 12);
}

TEST(RunDevice, ShowsNothingOfARunOnCpus) {
  const auto files = files_with("steps-4-5-rank-0.json", trace_text("\"first_step\":4"));
  EXPECT_TRUE(read_device_times(*files, "run").functions.empty());
  EXPECT_FALSE(item_of<PageTable>(run_page(*files, {"run"}), "Functions on the GPU"));
  EXPECT_TRUE(read_device_times(*memory_files(), "run").functions.empty());
}

TEST(RunDevice, NotesADamagedTrace) {
  for (const std::string& text :
       {std::string("{\"device\":"), std::string("[\"device\":]"),
        std::string("{\"otherData\":{\"device\":3}}"), trace_text("\"device\":\"h200\"")}) {
    const auto files = files_with("steps-4-5-rank-0.json", text);
    const std::string problem = read_device_times(*files, "run").problem;
    EXPECT_TRUE(problem.starts_with("run/trace/steps-4-5-rank-0.json: not ")) << problem;
    EXPECT_NE(to_html(run_page(*files, {"run"})).find("run/trace/steps-4-5-rank-0.json: not "),
              std::string::npos);
  }
}

}  // namespace
}  // namespace ashlar::report
