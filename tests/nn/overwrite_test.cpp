// The first micro-batch of a step overwrites the gradients that are products: the bits are those of
// adding onto zeros, whatever the step before left there.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

struct Case {
  DType compute;
  bool recompute, reference;
  bool top_k = false;  // mixtures of two experts a token and a gated shared one
};

ModelKeys keys_of(const Case& c) {
  ModelKeys keys = tiny_spec();
  if (!c.top_k) return keys;
  keys.layer_types.assign(3, {AttentionSpec::kKind, MoeSpec::kKind});
  keys.residual = Residual::kPlain, keys.router = RouterKind::kLinear;
  keys.linear_router.num_chosen = 2;
  keys.shared_expert_intermediate_size = 7, keys.shared_expert_gate = true;
  return keys;
}

// Gradients of two micro-batches after a step whose gradients were not finite.  A third, whose
// targets are all absent, leaves zeros where it comes first: the two are then added onto them.
Whole step_of_case(const Case& c, int64_t num_tokens, bool onto_zeros) {
  Recipe recipe = recipe_of(keys_of(c), 1, num_tokens);
  recipe.train.global_batch = 3;
  recipe.train.recompute = c.recompute;
  TinyRank rank(recipe, {.compute = c.compute, .num_threads = 2, .reference = c.reference});
  const auto batch = [&](std::vector<int32_t> ids, std::vector<int32_t> targets) {
    ids.resize(size_t(num_tokens));
    targets.resize(size_t(num_tokens));
    return Batch{ids, targets, {{0, num_tokens, 0, 0}}};
  };
  const std::vector<int32_t> targets = {7, 1, 9, 9, 2, 10, 4}, none(7, -1);
  const Batch first = batch({3, 7, 1, 9, 9, 2, 10}, targets);
  const Batch second = batch({8, 8, 5, 1, 4, 6, 2}, targets), empty = batch(targets, none);

  for (const Parameter& p : rank.model.parameters())
    for (int64_t i = 0; i < p.gradient.numel(); ++i) set(p.gradient, i, std::nan(""));
  const auto [a, b, c3] =
      onto_zeros ? std::tuple(&empty, &first, &second) : std::tuple(&first, &second, &empty);
  rank.model.step(std::array{a->view(), b->view(), c3->view()}, [&](int64_t ended) {
    if (!onto_zeros || ended > 0) return;
    for (const auto& [name, values] : whole_gradients(rank.model))
      for (const double g : values) EXPECT_EQ(g, 0) << name;
  });
  rank.model.reduce();
  rank.model.download_results();
  return whole_gradients(rank.model);
}

TEST(Overwrite, EqualsAddingOntoZeros) {
  // One token leaves most of the three experts without any: their gradients must still become
  // zeros.
  const Case cases[] = {{DType::kF64, false, true},       {DType::kF32, true, false},
                        {DType::kF32, false, true},       {DType::kBF16, false, false},
                        {DType::kF64, false, true, true}, {DType::kF32, true, false, true}};
  for (const Case& c : cases)
    for (const int64_t num_tokens : {7, 1}) {
      const Whole added = step_of_case(c, num_tokens, true),
                  overwritten = step_of_case(c, num_tokens, false);
      ASSERT_EQ(added.size(), overwritten.size());
      for (const auto& [name, values] : added) ASSERT_EQ(values, overwritten.at(name)) << name;
    }
}

TEST(Overwrite, ProductsAreTheMatricesOfEveryBlock) {
  const ModelWeights weights(model_of(tiny_spec()));
  int64_t products = 0, others = 0;
  for (const Stored& stored : weights.tensors)
    for (const ParameterInfo& info : stored.logical) {
      if (info.buffer) continue;
      (stored.is_product() ? products : others) += 1;
      const bool convolution = info.name.ends_with("conv_qk_grouped.weight");
      const bool router_output = info.name.ends_with("out_proj.weight");
      EXPECT_EQ(stored.is_product(),
                info.kind == OptimizerKind::kMuon || convolution || router_output)
          << info.name;
    }
  EXPECT_EQ(products, 3 * 12);
  EXPECT_EQ(others, 96 - 36);
}

}  // namespace
}  // namespace ashlar::nn
