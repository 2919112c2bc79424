// Plans of a recipe that leaves the size of buckets to the machine: they take that of --machine, as
// a recipe that states the number.
#include <gtest/gtest.h>

#include "ashlar/plan/check.h"
#include "ashlar/plan/estimate.h"
#include "ashlar/plan/search.h"
#include "tests/plan/small_machine.h"

namespace ashlar::plan {
namespace {

const std::string kBucketedRecipe = ASHLAR_FIXTURES "/recipes/tiny.toml";

// With a size more in its curves, of a quarter of the largest and at its bandwidth.
MachineFile saturated_machine() {
  MachineFile machine = small_machine();
  for (machine::CollectiveCurve& curve : machine.profile.collectives)
    curve.points.push_back({1 << 18, 60, 62.5, 70});
  return machine;
}

constexpr int64_t kSaturatedBytes = 1 << 18;
const std::string kAuto = "parallel.bucket_bytes=auto", kStated = "parallel.bucket_bytes=262144";

TEST(AutoBuckets, AreEstimatedAsTheNumberThatTheyAre) {
  const auto files = posix_files();
  EstimateOptions options;
  options.overrides = {"train.precision=fp32"};  // auto is another one elsewhere
  options.layouts = {kAuto, kStated, "parallel.bucket_bytes=20000"};
  options.num_ranks = 2;
  const Estimate estimate = plan::estimate(*files, kBucketedRecipe, saturated_machine(), options);
  EXPECT_EQ(estimate.layouts[0].parallel.bucket_bytes, kSaturatedBytes);
  EXPECT_EQ(estimate.layouts[0].time.total_s, estimate.layouts[1].time.total_s);
  EXPECT_GT(estimate.layouts[2].time.total_s, estimate.layouts[0].time.total_s);
}

TEST(AutoBuckets, AreCheckedWithTheMachineOrThatOfTheRecipe) {
  const auto files = posix_files();
  const MachineFile machine = saturated_machine();
  EXPECT_FALSE(check(*files, kBucketedRecipe, {kAuto}, 2, &machine).has_error());
  const Check without = check(*files, kBucketedRecipe, {kAuto}, 2, nullptr);
  ASSERT_TRUE(without.has_error());
  EXPECT_NE(without.findings[0].text.find("ashlar bench collectives --profile FILE"),
            std::string::npos);
}

TEST(AutoBuckets, AreSearchedAsTheNumberThatTheyAre) {
  const MachineFile machine = saturated_machine();
  Log log([](std::string_view) {});
  std::vector<double> steps;
  for (const std::string& buckets : {kAuto, kStated}) {
    SearchOptions options;
    options.num_ranks = 2;
    options.num_simulated = options.top = 1;
    options.fixed = {buckets,          "parallel.tp=1",       "parallel.cp=1",
                     "parallel.tsp=1", "parallel.pp=1",       "parallel.zero=1",
                     "parallel.ep=1",  "train.micro_batch=2", "parallel.muon=auto"};
    const SearchResult result =
        search(tiny_recipe(options.fixed), DType::kF32, machine, options, log);
    ASSERT_FALSE(result.best.empty());
    EXPECT_EQ(result.best[0].parallel.bucket_bytes, kSaturatedBytes);
    steps.push_back(result.best[0].step_s());
  }
  EXPECT_EQ(steps[0], steps[1]);
}

}  // namespace
}  // namespace ashlar::plan
