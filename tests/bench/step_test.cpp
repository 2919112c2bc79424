// The rows of a measured step are the kernels of its dry run.
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
    // A sum over calls of the larger of two is not below the larger of two sums.
    EXPECT_GE(row.floor_s * (1 + 1e-12),
              std::max(row.flop / report.peak_flops, row.bytes / report.triad_bytes_per_s))
        << row.op;
  }
  EXPECT_TRUE(std::is_sorted(report.rows.begin(), report.rows.end(),
                             [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; }));
}

TEST(Step, RatesFollowFromItsTime) {
  const Recipe recipe = tiny_fp32();
  const StepReport report = measure_step(recipe, 3);
  EXPECT_EQ(report.steps, 3);
  EXPECT_LE(report.min_s, report.step_s);
  EXPECT_LE(report.step_s, report.p99_s);
  EXPECT_NEAR(report.tokens_per_s * report.step_s, 4 * 32, 1e-6);
  EXPECT_NEAR(report.mfu * report.peak_flops / report.tokens_per_s,
              model_flop(model_of(recipe.model), 32).training, 1e-3);
  const auto json = nlohmann::json::parse(to_json_line(report, recipe));
  EXPECT_EQ(json["tokens_per_s"], report.tokens_per_s);
  EXPECT_EQ(json["ops"].size(), report.rows.size());
}

TEST(Triad, IsARateThatMemoryHas) {
  const double bytes_per_s = measure_triad(2);
  EXPECT_GT(bytes_per_s, 1e6);
  EXPECT_LT(bytes_per_s, 1e14);
}

}  // namespace
}  // namespace ashlar::bench
