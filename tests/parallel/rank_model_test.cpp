// Promises of RankModel beside its numbers, which cp_test, tp_test and the table of
// layouts (tests/train/parity_cases.cpp) hold against one rank.
#include "ashlar/parallel/rank_model.h"

#include <numeric>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

Recipe recipe_with_two_micro_batches() {
  Recipe recipe = recipe_of(spec_with_heads(4, 2), 1, 24);
  recipe.train.global_batch = 2;
  return recipe;
}

std::vector<std::vector<int64_t>> values_of(std::span<const Tensor> loads) {
  std::vector<std::vector<int64_t>> all;
  for (const Tensor& tensor : loads) {
    const std::span<const int64_t> values = tensor.span<const int64_t>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

std::vector<double> gradients_here(const RankModel& model) {
  std::vector<double> all;
  for (const Element& e : elements_of_gradients(model)) all.push_back(e.value);
  return all;
}

// On every rank of cp x tp, whose weights are sharded.
TEST(RankModel, EvaluationGivesTheLossesAndLeavesTheStep) {
  Recipe recipe = recipe_with_two_micro_batches();
  recipe.parallel.cp = recipe.parallel.tp = 2;
  recipe.parallel.zero = 3;
  const Batch one = batch_of({{5, 19}}, recipe.model.vocab_size),
              other = batch_of({{24}}, recipe.model.vocab_size);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(4, {}, allocator, [&](comm::Group& world) {
    TinyRank rank(recipe, world);
    RankModel& model = rank.model;
    std::vector<std::vector<int64_t>> first_loads;
    model.step(std::array{one.view(), other.view()}, [&](int64_t ended) {
      if (ended == 0) first_loads = values_of(model.loads());
    });
    model.reduce();
    model.download_results();
    const LossSum both = model.losses();
    // Tokens 6 to 17 of 24 are the second cp rank's; documents end at 4 and 23.
    EXPECT_EQ(both.count, world.rank() / 2 ? 12 + 12 : 10 + 11);
    const std::vector<double> gradients = gradients_here(model);
    const auto step_loads = values_of(model.step_loads());
    const LossSum again = model.evaluate(one.view());
    const LossSum rest = model.evaluate(other.view());
    EXPECT_EQ(again.sum + rest.sum, both.sum);
    EXPECT_EQ(again.count + rest.count, both.count);
    model.evaluate(one.view());
    EXPECT_EQ(values_of(model.loads()), first_loads);
    EXPECT_EQ(values_of(model.step_loads()), step_loads);
    EXPECT_EQ(gradients_here(model), gradients);
    for (const std::vector<int64_t>& loads : step_loads)  // of both cp ranks and micro-batches
      EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), int64_t{0}), 2 * 24);
  });
}

TEST(RankModel, CallsOutOfOrderAreOurBugs) {
  const Recipe recipe = recipe_with_two_micro_batches();
  const Batch batch = batch_of({{24}}, recipe.model.vocab_size);
  TinyRank rank(recipe);
  RankModel& model = rank.model;
  EXPECT_DEATH(model.reduce(), "in_step_");
  EXPECT_DEATH(model.step(std::array{batch.view()}), "micro_batches_per_step");
  model.step(std::array{batch.view(), batch.view()});
  EXPECT_DEATH(model.evaluate(batch.view()), "in_step_");
  model.reduce();
  model.download_results();
  model.evaluate(batch.view());
}

}  // namespace
}  // namespace ashlar::parallel
