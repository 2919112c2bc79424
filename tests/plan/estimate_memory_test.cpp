// Memory by closed formulas against the dry run, which counts what the allocator gives; in fp32,
// whose operands are as large on every instruction set.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ashlar/sizing/step_time.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::plan {
namespace {

struct Both {
  sizing::MemoryEstimate estimated;
  std::array<double, kNumTags> counted{};  // of the fullest rank
  double total = 0;
};

Both memory_of(const char* recipe_name, std::vector<std::string> keys, int ranks) {
  keys.push_back("train.threads=1");
  const auto files = posix_files();
  const Recipe recipe = train::read_recipe(
      *files, fmt::format("{}/../../recipes/{}.toml", ASHLAR_FIXTURES, recipe_name), keys);
  Both both;
  both.estimated =
      sizing::step_memory(sizing::step_shape(recipe, resolve_parallel(recipe, ranks), false));
  for (int rank = 0; rank < ranks; ++rank) {
    const train::RunPlan plan = train::plan_run(recipe, DType::kF32, ranks, 1, rank);
    if (double(plan.memory.total.peak_bytes) <= both.total) continue;
    both.total = double(plan.memory.total.peak_bytes);
    for (int tag = 0; tag < kNumTags; ++tag)
      both.counted[size_t(tag)] = double(plan.memory.tags[size_t(tag)].peak_bytes);
  }
  return both;
}

void expect_near(const char* recipe, const std::vector<std::string>& keys, int ranks,
                 double tolerance) {
  const Both both = memory_of(recipe, keys, ranks);
  const std::string layout = fmt::format("{} on {}: {}", recipe, ranks, keys.front());
  const auto near = [&](const char* what, double estimated, double counted) {
    EXPECT_NEAR(estimated / counted, 1, tolerance)
        << layout << ", " << what << ": " << 1e-6 * estimated << " MB, counted " << 1e-6 * counted;
  };
  near("total", both.estimated.total, both.total);
  near("weights", both.estimated.weights, both.counted[size_t(Tag::kWeights)]);
  near("gradients", both.estimated.gradients, both.counted[size_t(Tag::kGradients)]);
  near("optimizer", both.estimated.optimizer, both.counted[size_t(Tag::kOptimizer)]);
  near("saved", both.estimated.saved, both.counted[size_t(Tag::kSaved)]);
}

// Estimators are known to price experts as dense layers, to divide them by tp where ep divides
// them, and to take every stage for the mean one.
TEST(EstimateMemory, W8ExpertsStagesAndEndsAreCountedAsTheyAre) {
  const std::vector<std::string> batch = {"train.global_batch=16", "train.micro_batch=1"};
  const auto with = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), batch.begin(), batch.end());
    return keys;
  };
  expect_near("moe-nano", with({"parallel.zero=1"}), 2, 0.15);
  expect_near("moe-nano", with({"parallel.ep=4"}), 4, 0.15);
  expect_near("moe-nano", with({"parallel.tp=2", "parallel.ep=4"}), 8, 0.15);
  expect_near("zaya1-nano", with({"parallel.ep=2"}), 4, 0.15);
  // Seven blocks in three stages; the embedding is on the first and the last.
  expect_near("moe-nano", with({"parallel.pp=3", "train.global_batch=12"}), 3, 0.15);
  expect_near("llama-nano", with({"parallel.pp=2"}), 2, 0.15);
}

// Every stage of ZeRO by tag, ZeRO 1 with its own multipliers.
TEST(EstimateMemory, W9EveryZeroStageByTag) {
  for (const char* zero : {"0", "1", "2", "3"})
    expect_near(
        "llama-nano",
        {fmt::format("parallel.zero={}", zero), "train.global_batch=16", "train.micro_batch=1"}, 4,
        0.15);
}

}  // namespace
}  // namespace ashlar::plan
