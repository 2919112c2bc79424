// The first micro-batch of a step overwrites the gradients that are products: the bits are those of
// adding onto zeros, whatever the step before left there.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "golden.h"

namespace ashlar::nn {
namespace {

using Gradients = std::map<std::string, std::vector<double>>;

const std::vector<int32_t> kFirst = {3, 7, 1, 9, 9, 2, 10}, kSecond = {8, 8, 5, 1, 4, 6, 2};
const std::vector<int32_t> kTargets = {7, 1, 9, 9, 2, 10, 4};

// Gradients of two micro-batches after a step whose gradients were not finite.
Gradients run(DType compute, bool overwrite, Keep keep, int64_t num_tokens, bool reference) {
  Harness h(tiny_spec(), compute, num_tokens, keep, 8, 2, reference);
  h.fill_golden();
  const ModelWeights& gradients = h.model.gradients();
  gradients.for_each(h.model.spec(), [&](const ParameterInfo&, const Tensor& g) {
    for (int64_t i = 0; i < g.numel(); ++i) Harness::set(g, i, std::nan(""));
  });
  if (overwrite)
    fill_zero(h.model.unit_gradients(0));
  else
    gradients.for_each(h.model.spec(), [](const ParameterInfo&, const Tensor& g) { fill_zero(g); });
  bool first = true;
  for (const std::vector<int32_t>& ids : {kFirst, kSecond}) {
    h.tokens({ids.begin(), ids.begin() + num_tokens},
             {kTargets.begin(), kTargets.begin() + num_tokens});
    ModelCall call = h.model.call(h.exchange, h.sequence, h.ids.tensor);
    call.accumulate = !overwrite || !first;
    first = false;
    forward(h.ctx, call, h.saved);
    head_loss_backward(h.ctx, h.model, h.saved.final_TH, h.targets.tensor, 0.5, h.loss.tensor,
                       h.dfinal.tensor, gradients.embed);
    backward(h.ctx, call, h.saved, h.dfinal.tensor, gradients);
  }
  Gradients all;
  gradients.for_each(h.model.spec(), [&](const ParameterInfo& info, const Tensor& g) {
    auto& values = all[info.name];
    for (int64_t i = 0; i < g.numel(); ++i) values.push_back(Harness::get(g, i));
  });
  return all;
}

TEST(Overwrite, EqualsAddingOntoZeros) {
  // One token leaves most of the three experts without any: their gradients must still become
  // zeros.
  struct Case {
    DType compute;
    Keep keep;
    bool reference;
  };
  const Case cases[] = {{DType::kF64, Keep::kAll, true},
                        {DType::kF32, Keep::kBlockInput, false},
                        {DType::kF32, Keep::kAll, true},
                        {DType::kBF16, Keep::kAll, false}};
  for (const Case& c : cases)
    for (const int64_t num_tokens : {7, 1}) {
      const Gradients added = run(c.compute, false, c.keep, num_tokens, c.reference);
      const Gradients overwritten = run(c.compute, true, c.keep, num_tokens, c.reference);
      ASSERT_EQ(added.size(), overwritten.size());
      for (const auto& [name, values] : added) ASSERT_EQ(values, overwritten.at(name)) << name;
    }
}

TEST(Overwrite, ProductsAreTheMatricesOfEveryBlock) {
  Arena arena(Device::kMeta);
  const ModelSpec spec = tiny_spec();
  int64_t products = 0, others = 0;
  ModelWeights::make(arena, spec, DType::kF32, false)
      .for_each(spec, [&](const ParameterInfo& info, const Tensor&) {
        (info.product ? products : others) += 1;
        const bool convolution = info.name.ends_with("conv_qk_grouped.weight");
        const bool router_output = info.name.ends_with("out_proj.weight");
        EXPECT_EQ(info.product, info.kind == OptimizerKind::kMuon || convolution || router_output)
            << info.name;
      });
  EXPECT_EQ(products, 3 * 12);
  EXPECT_EQ(others, 96 - 36);
}

}  // namespace
}  // namespace ashlar::nn
