// The rows of a measured step are the kernels of its dry run, and its last lines sum them up.
#include "ashlar/bench/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/sizing/model.h"
#include "ashlar/train/plan.h"

namespace ashlar::bench {
namespace {

Recipe tiny_fp32() {
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml",
                     std::vector<std::string>{"train.precision=fp32"});
}

TEST(Step, RowsAreTheKernelsThatTheDryRunCounts) {
  const Recipe recipe = tiny_fp32();
  const StepReport report = measure_step(recipe, 2);
  const train::KernelCosts costs = train::plan_run(recipe, DType::kF32).costs;
  EXPECT_EQ(report.rows.size(), costs.size());
  for (const OpRow& row : report.rows) {
    const auto counted = costs.find(row.op);
    ASSERT_NE(counted, costs.end()) << row.op;
    EXPECT_EQ(row.flop, double(counted->second.flop)) << row.op;
    EXPECT_EQ(row.bytes, double(counted->second.bytes)) << row.op;
    EXPECT_GT(row.calls, 0) << row.op;
    EXPECT_GE(row.outside_caches_s * (1 + 1e-12), row.floor_s) << row.op;
  }
  EXPECT_TRUE(std::is_sorted(report.rows.begin(), report.rows.end(),
                             [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; }));
}

TEST(Step, RatesFollowFromItsTime) {
  const Recipe recipe = tiny_fp32();
  const StepReport report = measure_step(recipe, 3);
  EXPECT_EQ(report.steps, 3);
  EXPECT_LE(report.min_s, report.step_s);
  EXPECT_LE(report.mfu, 1.0);
  EXPECT_LE(report.step_s, report.p99_s);
  EXPECT_NEAR(report.tokens_per_s() * report.step_s, 4 * 32, 1e-6);
  EXPECT_NEAR(report.mfu * report.floors.peak_flops / report.tokens_per_s(),
              model_flop(model_of(recipe.model), 32).training, 1e-3);
  const auto json = nlohmann::json::parse(to_json_line(report, recipe));
  EXPECT_EQ(json["tokens_per_s"], report.tokens_per_s());
  EXPECT_EQ(json["ops"].size(), report.rows.size());
}

// One row of 10 ms beside a floor of 4, one of 3 beside 2, and two that lose less.
StepReport made_report() {
  StepReport report;
  report.rows = {{"a", 1, 0, 0, 0.010, 0.004, 0.005},
                 {"b", 2, 0, 0, 0.003, 0.002, 0.0025},
                 {"c", 1, 0, 0, 0.0025, 0.0010, 0.0010},
                 {"d", 1, 0, 0, 0.0010, 0.0005, 0.0005}};
  report.step_s = 0.0165;
  report.tokens = 1500;
  report.floors.memory.list = {{1, 1e9}};
  return report;
}

TEST(Step, EndsWithWhatItCouldReachWhatItReachesAndWhatLosesMost) {
  const StepReport report = made_report();
  EXPECT_EQ(closing_lines(report),
            "floors of all calls: 7.5 ms a step, 200,000 tokens/s; with every operand from memory "
            "9.0 ms\n"
            "reached: 16.5 ms, 90,909 tokens/s, 45% of that\n"
            "most above their floors: a 6.0 ms, c 1.5 ms, b 1.0 ms\n");
  const std::string text = to_text(report);
  EXPECT_TRUE(text.ends_with(closing_lines(report))) << text;
  const auto json = nlohmann::json::parse(to_json_line(report, tiny_fp32()));
  EXPECT_NEAR(json["floor_s"], 0.0075, 1e-12);
  EXPECT_NEAR(json["floor_tokens_per_s"], 200000, 1e-6);
  EXPECT_NEAR(json["share"], 0.0075 / 0.0165, 1e-12);
  ASSERT_EQ(json["most_above"].size(), 3u);
  EXPECT_EQ(json["most_above"][1]["op"], "c");
  EXPECT_NEAR(json["most_above"][1]["above_s"], 0.0015, 1e-12);
}

}  // namespace
}  // namespace ashlar::bench
