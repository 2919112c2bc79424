// The tiny model against the numbers of another program, and its gradients against differences.
#include "tests/nn/golden.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/nn/mlp_router.h"
#include "ashlar/nn/moe.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/read_json.h"

namespace ashlar::nn {
namespace {

using ashlar::testing_support::read_json;
using parallel::LossSum;
using namespace parallel::testing_support;

const Batch kBatch = {{3, 7, 1, 9, 9, 2, 10}, {7, 1, 9, 9, 2, 10, 4}, {{0, 7, 0, 0}}};

Recipe golden_recipe(bool recompute = false) {
  Recipe recipe = recipe_of(tiny_spec(), 1, 7);
  recipe.train.recompute = recompute;
  return recipe;
}

double mean(const LossSum& losses) {
  return losses.sum / double(losses.count);
}

const MlpRouterSaved& router_of(const TinyRank& rank, size_t l) {
  const Branch& branch = *rank.model.local().weights().blocks[l].feed_forward;
  return dynamic_cast<const MlpRouter&>(dynamic_cast<const MoeBranch&>(branch).router()).saved(0);
}

void expect_golden(DType compute, bool recompute, double tolerance) {
  TinyRank rank(golden_recipe(recompute), {.compute = compute, .num_threads = 2});
  const auto file = read_json("zaya1_tiny.json");
  EXPECT_NEAR(mean(rank.step(kBatch)), file["loss"], tolerance);
  const std::vector<double> logits = rank.logits();
  for (size_t t = 0; t < 7; ++t)
    for (size_t v = 0; v < 11; ++v)
      EXPECT_NEAR(logits[t * 11 + v], file["logits"][t][v], tolerance * 10);
  const Saved& saved = rank.model.saved();
  for (size_t l = 0; l < 3; ++l)
    for (size_t t = 0; t < 7; ++t) {
      const MlpRouterSaved& router = router_of(rank, l);
      EXPECT_EQ(router.expert.as<int32_t>()[t], file["experts"][l][t]) << l << " " << t;
      if (!recompute) {
        EXPECT_NEAR(get(router.weight, int64_t(t)), file["chosen_prob"][l][t], tolerance);
      }
      for (size_t i = 0; i < 8; ++i)
        EXPECT_NEAR(get(saved.x[l + 1], int64_t(t * 8 + i)), file["x_after_block"][l][t][i],
                    tolerance * 10);
    }
  double total = 0.0;
  const Whole gradients = whole_gradients(rank.model);
  for (const auto& [name, values] : gradients) {
    double sumsq = 0.0;
    for (const double g : values) sumsq += g * g;
    EXPECT_NEAR(sumsq, file["grad_sumsq"][name], tolerance * 10) << name;
    const auto& first = file["grad_first"][name];
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_NEAR(values[i], first[i], tolerance * 10) << name << " " << i;
    total += sumsq;
  }
  EXPECT_EQ(gradients.size(), 96u);  // 99 tensors, 3 of them balancing biases
  EXPECT_NEAR(total, 8.292599194751755, tolerance * 100);
}

TEST(Golden, WeightsMatchTheFile) {
  const TinyRank rank(golden_recipe());
  const auto file = read_json("zaya1_tiny.json");
  const Model& model = rank.model.local();
  size_t compared = 0;
  model.weights().for_each([&](const ParameterInfo& info, const Tensor& w, const Tensor&) {
    if (!file["weight_first3"].contains(info.name)) return;
    const auto& first = file["weight_first3"][info.name];
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_NEAR(get(w, int64_t(i)), first[i], 1e-15) << info.name;
    ++compared;
  });
  EXPECT_EQ(compared, file["weight_first3"].size());
  EXPECT_EQ(model.num_parameters(), 3970);
}

TEST(Golden, Double) {
  expect_golden(DType::kF64, false, 1e-10);
}
TEST(Golden, DoubleRecomputed) {
  expect_golden(DType::kF64, true, 1e-10);
}
TEST(Golden, Single) {
  expect_golden(DType::kF32, false, 1e-5);
}

void expect_skip(SkipOutput skip, double loss, double sumsq) {
  Recipe recipe = golden_recipe();
  recipe.model.skip_output = skip;
  TinyRank rank(recipe, {.num_threads = 2});
  for (const Piece& bias : rank.model.buffers()) set(bias.data, 3, 0.08);
  EXPECT_NEAR(mean(rank.step(kBatch)), loss, 1e-9);
  double total = 0.0;
  for (const auto& [name, values] : whole_gradients(rank.model))
    for (const double g : values) total += g * g;
  EXPECT_NEAR(total, sumsq, 1e-9);
  const std::vector<std::vector<int>> experts = {
      {3, 3, 3, 3, 3, 3, 3}, {3, 2, 3, 3, 3, 0, 2}, {1, 1, 1, 1, 1, 1, 3}};
  for (size_t l = 0; l < 3; ++l)
    for (size_t t = 0; t < 7; ++t)
      EXPECT_EQ(router_of(rank, l).expert.as<int32_t>()[t], experts[l][t]);
}

TEST(Golden, SkipZero) {
  expect_skip(SkipOutput::kZero, 3.0712587997381564, 9.01704615500111);
}
TEST(Golden, SkipIdentity) {
  expect_skip(SkipOutput::kIdentity, 2.962557828024841, 8.857494273953195);
}

// Central differences on every trainable scalar.
TEST(Golden, FiniteDifferences) {
  TinyRank rank(golden_recipe(), {.num_threads = 2});
  rank.step(kBatch);
  const auto loss = [&] {
    rank.model.weights_changed();
    return mean(rank.model.evaluate(kBatch.view()));
  };
  const double step = 1e-6;
  int64_t checked = 0;
  for (const Parameter& p : rank.model.parameters())
    for (int64_t i = 0; i < p.value.numel(); ++i, ++checked) {
      double& w = p.value.as<double>()[i];
      const double kept = w;
      w = kept + step;
      const double up = loss();
      w = kept - step;
      const double down = loss();
      w = kept;
      ASSERT_NEAR((up - down) / (2 * step), p.gradient.as<double>()[i], 1e-8)
          << p.logical.name << " " << i;
    }
  EXPECT_EQ(checked, 3970);
}

}  // namespace
}  // namespace ashlar::nn
