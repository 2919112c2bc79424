#include "golden.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ashlar::nn {
namespace {

const std::vector<int32_t> kIds = {3, 7, 1, 9, 9, 2, 10}, kTargets = {7, 1, 9, 9, 2, 10, 4};

std::unique_ptr<Harness> golden(DType compute, Keep keep = Keep::kAll) {
  auto h = std::make_unique<Harness>(tiny_spec(), compute, 7, keep);
  h->fill_golden();
  h->tokens(kIds, kTargets);
  return h;
}

// The stream after block l is kept only with Keep::kAll or kBlockInput.
void expect_golden(Harness& h, double tolerance) {
  const auto file = read_json("zaya1_tiny.json");
  EXPECT_NEAR(h.run_backward(1.0 / 7), file["loss"], tolerance);
  OwnedTensor logits = make_tensor(h.allocator, h.model.types().stream, {7, 11}, Tag::kWorkspace);
  head_logits(h.ctx, h.model, h.saved.final_TH, logits.tensor);
  for (int t = 0; t < 7; ++t)
    for (int v = 0; v < 11; ++v)
      EXPECT_NEAR(Harness::get(logits.tensor, t * 11 + v), file["logits"][t][v], tolerance * 10);
  for (int l = 0; l < 3; ++l)
    for (int t = 0; t < 7; ++t) {
      const RouterSaved& router = h.saved.blocks[l].moe.router;
      EXPECT_EQ(router.expert.as<int32_t>()[t], file["experts"][l][t]) << l << " " << t;
      if (h.saved.keep == Keep::kAll) {
        EXPECT_NEAR(Harness::get(router.chosen, t), file["chosen_prob"][l][t], tolerance);
      }
      for (int i = 0; i < 8; ++i)
        EXPECT_NEAR(Harness::get(h.saved.x[l + 1], t * 8 + i), file["x_after_block"][l][t][i],
                    tolerance * 10);
    }
  double total = 0.0;
  int tensors = 0;
  h.model.gradients().for_each(h.model.spec(), [&](const ParameterInfo& info, const Tensor& g) {
    double sumsq = 0.0;
    for (int64_t i = 0; i < g.numel(); ++i) sumsq += Harness::get(g, i) * Harness::get(g, i);
    EXPECT_NEAR(sumsq, file["grad_sumsq"][info.name], tolerance * 10) << info.name;
    const auto& first = file["grad_first"][info.name];
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_NEAR(Harness::get(g, int64_t(i)), first[i], tolerance * 10) << info.name << " " << i;
    total += sumsq;
    ++tensors;
  });
  EXPECT_EQ(tensors, 96);  // 99 tensors, 3 of them balancing biases
  EXPECT_NEAR(total, 8.292599194751755, tolerance * 100);
}

TEST(Golden, WeightsMatchTheFile) {
  auto h = golden(DType::kF64);
  const auto file = read_json("zaya1_tiny.json");
  h->model.weights().for_each(h->model.spec(), [&](const ParameterInfo& info, const Tensor& w) {
    if (!file["weight_first3"].contains(info.name)) return;
    const auto& first = file["weight_first3"][info.name];
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_NEAR(Harness::get(w, int64_t(i)), first[i], 1e-15) << info.name;
  });
  EXPECT_EQ(h->model.num_parameters(), 3970);
}

TEST(Golden, Double) {
  expect_golden(*golden(DType::kF64), 1e-10);
}
TEST(Golden, DoubleRecomputed) {
  expect_golden(*golden(DType::kF64, Keep::kBlockInput), 1e-10);
}
TEST(Golden, Single) {
  expect_golden(*golden(DType::kF32), 1e-5);
}

void expect_skip(SkipOutput skip, double loss, double sumsq) {
  ModelSpec spec = tiny_spec();
  spec.skip_output = skip;
  Harness h(spec, DType::kF64, 7);
  h.fill_golden();
  for (const BlockWeights& b : h.model.weights().blocks)
    b.moe.router.balancing.as<double>()[3] = 0.08;
  h.tokens(kIds, kTargets);
  EXPECT_NEAR(h.run_backward(1.0 / 7), loss, 1e-9);
  double total = 0.0;
  h.model.gradients().for_each(spec, [&](const ParameterInfo&, const Tensor& g) {
    for (int64_t i = 0; i < g.numel(); ++i) total += Harness::get(g, i) * Harness::get(g, i);
  });
  EXPECT_NEAR(total, sumsq, 1e-9);
  const std::vector<std::vector<int>> experts = {
      {3, 3, 3, 3, 3, 3, 3}, {3, 2, 3, 3, 3, 0, 2}, {1, 1, 1, 1, 1, 1, 3}};
  for (int l = 0; l < 3; ++l)
    for (int t = 0; t < 7; ++t)
      EXPECT_EQ(h.saved.blocks[l].moe.router.expert.as<int32_t>()[t], experts[l][t]);
}

TEST(Golden, SkipZero) {
  expect_skip(SkipOutput::kZero, 3.0712587997381564, 9.01704615500111);
}
TEST(Golden, SkipIdentity) {
  expect_skip(SkipOutput::kIdentity, 2.962557828024841, 8.857494273953195);
}

// Central differences on every trainable scalar.
TEST(Golden, FiniteDifferences) {
  auto h = golden(DType::kF64);
  h->run_backward(1.0 / 7);
  const double step = 1e-6;
  int64_t checked = 0;
  for (const Parameter& p : h->model.parameters())
    for (int64_t i = 0; i < p.value.numel(); ++i, ++checked) {
      double& w = p.value.as<double>()[i];
      const double kept = w;
      w = kept + step;
      h->model.pack(h->ctx);
      const double up = h->run_forward();
      w = kept - step;
      h->model.pack(h->ctx);
      const double down = h->run_forward();
      w = kept;
      ASSERT_NEAR((up - down) / (2 * step), p.gradient.as<double>()[i], 1e-8)
          << p.logical.name << " " << i;
    }
  EXPECT_EQ(checked, 3970);
}

}  // namespace
}  // namespace ashlar::nn
