// A step on several ranks is the step on one: same batch, loss, gradients and weights.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/comm/self/self.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/start.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {
namespace {

const std::string kTiny = ASHLAR_TEST_DATA "/recipes/tiny.toml";

// Row `row` of the global batch: ids without pattern, cut into two documents.
struct Row {
  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
};

Row row_of(const Recipe& recipe, int64_t step, int64_t row) {
  const int64_t length = recipe.data.sequence_length;
  Row r;
  auto seed = uint32_t(step * 1000 + row + 1);
  for (int64_t i = 0; i <= length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    r.ids.push_back(int32_t((seed >> 8) % uint32_t(recipe.model.vocab_size)));
  }
  r.targets.assign(r.ids.begin() + 1, r.ids.end());
  r.ids.pop_back();
  for (int64_t i = 0; i < row % 3; ++i) r.targets[size_t(5 * i)] = -1;  // ranks differ in targets
  const int64_t cut = 1 + int64_t(seed % uint32_t(length - 1));
  r.segments = {{0, cut, 0, 0}, {cut, length - cut, 0, 1}};
  return r;
}

struct Outcomes {
  std::vector<double> losses, norms;
  std::vector<double> gradients, weights;  // after the last step
};

std::vector<double> values_of(const std::vector<Parameter>& parameters, Tensor Parameter::*which) {
  std::vector<double> values;
  for (const Parameter& p : parameters)
    for (const double v : (p.*which).span<double>()) values.push_back(v);
  return values;
}

// Three steps in fp64 on rank `ranks.rank()`.
Outcomes train_on(const Recipe& recipe, comm::Group& ranks) {
  const RunPlan plan = plan_run(recipe, DType::kF64, ranks.size());
  Threads threads(1);
  Allocator allocator(Device::kCpu);
  Trainer trainer(recipe, DType::kF64, allocator, threads, ranks, plan.workspace_bytes);
  trainer.initialize();
  const int64_t rows = recipe.train.global_batch / ranks.size();
  Outcomes outcomes;
  for (int64_t step = 0; step < 3; ++step) {
    trainer.begin_step(step);
    for (int64_t row = 0; row < rows; ++row) {
      const Row r = row_of(recipe, step, ranks.rank() * rows + row);
      trainer.accumulate({r.ids, r.targets, r.segments});
    }
    trainer.reduce();
    const StepStats stats = trainer.measure();
    outcomes.losses.push_back(stats.loss);
    outcomes.norms.push_back(stats.gradient_norm);
    outcomes.gradients = values_of(trainer.optimizer().parameters(), &Parameter::gradient);
    trainer.apply(stats);
  }
  outcomes.weights = values_of(trainer.optimizer().parameters(), &Parameter::value);
  return outcomes;
}

Outcomes on_one_rank(const Recipe& recipe) {
  Allocator allocator(Device::kCpu);
  comm::SelfWorld world(allocator);
  return train_on(recipe, world.group());
}

std::vector<Outcomes> on_ranks(const Recipe& recipe, int num_ranks) {
  std::vector<Outcomes> outcomes(static_cast<size_t>(num_ranks));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
    outcomes[size_t(ranks.rank())] = train_on(recipe, ranks);
  });
  return outcomes;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    norm = std::max(norm, std::abs(a[i]));
  }
  return difference / norm;
}

struct Case {
  std::string name;
  std::vector<std::string> overrides;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class RanksEqualOne : public testing::TestWithParam<Case> {};

TEST_P(RanksEqualOne, LossGradientsAndWeights) {
  std::vector<std::string> overrides = GetParam().overrides;
  overrides.insert(overrides.end(), {"train.precision=fp64", "train.micro_batch=1",
                                     "train.global_batch=8", "data.num_streams=8"});
  const Recipe recipe = load_recipe(kTiny, overrides);
  const Outcomes one = on_one_rank(recipe);
  for (const int num_ranks : {2, 4, 8}) {
    SCOPED_TRACE(num_ranks);
    const std::vector<Outcomes> ranks = on_ranks(recipe, num_ranks);
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(ranks[0].losses[step] / one.losses[step], 1, 1e-10);
      EXPECT_NEAR(ranks[0].norms[step] / one.norms[step], 1, 1e-10);
    }
    EXPECT_LE(relative_difference(one.gradients, ranks[0].gradients), 1e-10);
    EXPECT_LE(relative_difference(one.weights, ranks[0].weights), 1e-10);
    for (const Outcomes& rank : ranks) {  // bit for bit
      EXPECT_EQ(rank.losses, ranks[0].losses);
      EXPECT_EQ(rank.gradients, ranks[0].gradients);
      EXPECT_EQ(rank.weights, ranks[0].weights);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, RanksEqualOne,
    testing::Values(
        Case{"muon", {}}, Case{"adamw_recompute", {"optim.matrices=adamw", "train.recompute=true"}},
        Case{"windows_and_many_experts",
             {"model.layer_types=alternate", "model.sliding_window=9", "model.num_experts=7"}},
        Case{"identity_skip_all_classes",
             {"moe.skip_output=identity", "moe.balance.target=all_classes"}}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// Updates once a pass, over the passes of all ranks at once: another schedule than one rank's, and
// the same on every rank.
TEST(Ranks, MicroBatchBalanceIsTheSameOnEveryRank) {
  const Recipe recipe = load_recipe(
      kTiny, std::vector<std::string>{"train.precision=fp64", "train.micro_batch=1",
                                      "train.global_batch=4", "moe.balance.scope=micro_batch"});
  const std::vector<Outcomes> ranks = on_ranks(recipe, 2);
  EXPECT_EQ(ranks[0].losses, ranks[1].losses);
  EXPECT_EQ(ranks[0].weights, ranks[1].weights);
}

TEST(Ranks, TheyMustShareTheBatchEvenly) {
  const Recipe recipe =
      load_recipe(kTiny, std::vector<std::string>{"train.micro_batch=2", "train.global_batch=12",
                                                  "data.num_streams=12"});
  for (const int fits : {1, 2, 3, 6}) EXPECT_NO_THROW(check_ranks(recipe, fits));
  for (const int wrong : {0, 4, 5, 7, 12}) {
    try {
      check_ranks(recipe, wrong);
      ADD_FAILURE() << wrong << " ranks were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      if (wrong > 0) {
        EXPECT_NE(std::string(error.what()).find("choose one of: 1 2 3 6"), std::string::npos)
            << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::train
