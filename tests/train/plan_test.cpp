// The dry run's memory is the real run's, to the byte, and a steady step allocates nothing.
#include "ashlar/train/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "ashlar/comm/self/self.h"
#include "ashlar/train/trainer.h"
#include "tests/support/malloc_count.h"

namespace ashlar::train {
namespace {

const std::string kTiny = ASHLAR_FIXTURES "/recipes/tiny.toml";
const std::string kNano = ASHLAR_FIXTURES "/../../recipes/zaya1-nano.toml";

struct PlanCase {
  std::string name, recipe;
  std::vector<std::string> overrides;
};

void PrintTo(const PlanCase& c, std::ostream* out) {
  *out << c.name;
}

const std::vector<PlanCase> kPlanCases = {
    {"tiny", kTiny, {"train.precision=fp32"}},
    {"tiny_bf16_recompute",
     kTiny,
     {"train.precision=bf16", "train.recompute=true", "train.threads=2"}},
    {"tiny_bf16_stream",
     kTiny,
     {"train.precision=bf16", "train.stream=bf16", "train.recompute=true"}},
    {"tiny_fp64_adamw", kTiny, {"train.precision=fp64", "optim.matrices=adamw"}},
    {"tiny_window_odd_sizes",
     kTiny,
     {"model.layer_types=alternate", "model.sliding_window=9", "data.sequence_length=37",
      "train.micro_batch=1", "train.global_batch=3", "model.num_experts=5",
      "model.vocab_size=333"}},
    {"tiny_three_layers_micro_scope",
     kTiny,
     {"model.num_hidden_layers=3", "moe.balance.scope=micro_batch", "moe.skip_output=identity",
      "optim.muon_split_gate_up=true", "train.recompute=true", "train.precision=fp32"}},
    {"tiny_head_fp32",
     kTiny,
     {"model.head_fp32=true", "train.precision=bf16", "moe.balance.target=all_classes"}},
    {"nano", kNano, {}},
    {"nano_fp32_recompute",
     kNano,
     {"train.precision=fp32", "train.recompute=true", "train.micro_batch=1", "train.global_batch=1",
      "data.sequence_length=128"}},
    {"nano_adamw", kNano, {"optim.matrices=adamw", "train.micro_batch=1", "train.global_batch=2"}},
    {"nano_adamw_recompute",
     kNano,
     {"optim.matrices=adamw", "train.recompute=true", "train.micro_batch=1",
      "train.global_batch=1"}},
};

// Rows of ids without pattern; each row holds two documents.
struct Batch {
  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
  MicroBatch view() const { return {ids, targets, segments}; }
};

Batch make_batch(const Recipe& recipe, uint32_t seed) {
  const int64_t rows = recipe.train.micro_batch, length = recipe.data.sequence_length;
  Batch batch;
  for (int64_t i = 0; i < rows * length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    batch.ids.push_back(int32_t((seed >> 8) % uint32_t(recipe.model.vocab_size)));
  }
  batch.targets = batch.ids;
  std::rotate(batch.targets.begin(), batch.targets.begin() + 1, batch.targets.end());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t cut = 1 + int64_t(seed % uint32_t(length - 1));
    batch.segments.push_back({row * length, cut, 0, 2 * row});
    batch.segments.push_back({row * length + cut, length - cut, 0, 2 * row + 1});
  }
  return batch;
}

void train_step(Trainer& trainer, int64_t step, const Batch& batch) {
  std::array<MicroBatch, 8> batches;
  batches.fill(batch.view());
  const auto count = size_t(trainer.model().micro_batches_per_step());
  ASSERT_LE(count, batches.size());
  trainer.run(step, std::span(batches).first(count));
  trainer.reduce();
  trainer.apply(trainer.measure());
}

class PlanEqualsReality : public testing::TestWithParam<PlanCase> {};

TEST_P(PlanEqualsReality, ToTheByteAndNothingIsAllocatedLater) {
  Recipe recipe = load_recipe(GetParam().recipe, GetParam().overrides);
  if (recipe.train.threads == 0) recipe.train.threads = 2;
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const RunPlan plan = plan_run(recipe, compute);

  Threads threads(int(recipe.train.threads));
  Allocator allocator(Device::kCpu);
  comm::SelfWorld world(allocator);
  Trainer trainer(recipe, compute, allocator, threads, world.group(), plan.step_memory);
  EXPECT_EQ(trainer.num_parameters(), plan.num_parameters);
  trainer.initialize();
  trainer.evaluate(make_batch(recipe, 3).view());
  train_step(trainer, 0, make_batch(recipe, 1));
  const Batch batch = make_batch(recipe, 2);
  train_step(trainer, 1, batch);

  const MemoryCounts real = allocator.counts();
  for (int tag = 0; tag < kNumTags; ++tag)
    EXPECT_EQ(real.tags[size_t(tag)].peak_bytes, plan.memory.tags[size_t(tag)].peak_bytes)
        << name_of(Tag(tag));
  EXPECT_EQ(real.total.peak_bytes, plan.memory.total.peak_bytes);
  EXPECT_EQ(real.num_allocations, plan.memory.num_allocations);
  EXPECT_EQ(trainer.peak_memory(), plan.step_memory);

  const int64_t before = ashlar::testing_support::num_mallocs();
  train_step(trainer, 2, batch);
  trainer.evaluate(batch.view());
  const int64_t calls = ashlar::testing_support::num_mallocs() - before;
  EXPECT_EQ(allocator.counts().num_allocations, real.num_allocations);
  if (ashlar::testing_support::counts_mallocs()) {
    EXPECT_EQ(calls, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, PlanEqualsReality, testing::ValuesIn(kPlanCases),
                         [](const testing::TestParamInfo<PlanCase>& info) {
                           return info.param.name;
                         });

TEST(MallocCount, SeesAnAllocation) {
  if (!ashlar::testing_support::counts_mallocs())
    GTEST_SKIP() << "needs a build without sanitizers: they own malloc";
  const int64_t before = ashlar::testing_support::num_mallocs();
  std::vector<int> values(10);
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), 0);
  EXPECT_EQ(ashlar::testing_support::num_mallocs() - before, 1);
}

}  // namespace
}  // namespace ashlar::train
