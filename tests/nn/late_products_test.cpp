// Products of weights that are kept back and run later, and branches that make their values again
// in their own backward: the same bits as at once.
#include "ashlar/nn/late_products.h"

#include <gtest/gtest.h>

#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

// ZAYA1's blocks, or dense ones, or one of each, or mixtures of two experts a token and a gated
// shared one.
ModelKeys keys_of_kind(int kind) {
  ModelKeys keys = tiny_spec();
  keys.qk_norm_eps = 1e-12, keys.intermediate_size = 6, keys.qk_norm = QkNorm::kRms;
  if (kind == 1) keys.layer_types.assign(3, LayerType::kFullAttention);
  if (kind == 2) keys.layer_types[1] = {AttentionSpec::kKind, MoeSpec::kKind};
  if (kind == 3) {
    keys.layer_types.assign(3, {AttentionSpec::kKind, MoeSpec::kKind});
    keys.router = RouterKind::kLinear, keys.linear_router.num_chosen = 2;
    keys.shared_expert_intermediate_size = 7, keys.shared_expert_gate = true;
  }
  if (kind > 0) keys.residual = Residual::kPlain;
  return keys;
}

// Backward of the model alone, given the gradient of its output.
Whole gradients(const ModelKeys& keys, DType compute, bool late) {
  TinyRank rank(recipe_of(keys, 2, 12), {.compute = compute, .num_threads = 2});
  rank.step(batch_of({{5, 1, 6}, {12}}, 11));
  for (const Parameter& p : rank.model.parameters())
    for (int64_t i = 0; i < p.gradient.numel(); ++i) set(p.gradient, i, 0.0);
  // The model of the rank is const for others; what runs it is not.
  auto& model = const_cast<Model&>(rank.model.local());
  Allocator allocator(Device::kCpu);
  Arena kept_back(allocator, 1 << 20, Tag::kWorkspace);
  LateProducts products(kept_back, 9 * 3);
  const Batch batch = batch_of({{5, 1, 6}, {12}}, 11);
  OwnedTensor ids = make_tensor(allocator, DType::kI32, {24}, Tag::kInput);
  for (size_t t = 0; t < 24; ++t) ids.tensor.as<int32_t>()[t] = batch.ids[t];
  const kernels::Sequence sequence{batch.segments};
  LocalExchange exchange;
  ModelCall call = model.call(exchange.exchanges(), sequence, ids.tensor);
  if (late) call.late = &products;
  const Saved& saved = rank.model.saved();
  const Shape shape = saved.final_TH.shape;
  OwnedTensor exact = make_tensor(allocator, DType::kF64, shape, Tag::kInput);
  for (int64_t i = 0; i < shape.numel(); ++i) set(exact.tensor, i, std::sin(double(i)));
  OwnedTensor dfinal = make_tensor(allocator, saved.final_TH.dtype, shape, Tag::kInput);
  copy_convert(exact.tensor, dfinal.tensor);
  backward(rank.ctx, call, saved, dfinal.tensor);
  if (late) {
    EXPECT_GE(products.size(), 3 * 4u);
    const Whole before = whole_gradients(rank.model);
    for (const double g : before.at("model.layers.1.self_attn.o_proj.weight")) EXPECT_EQ(g, 0.0);
    products.run(rank.ctx);
    EXPECT_EQ(products.size(), 0u);
  }
  return whole_gradients(rank.model);
}

TEST(LateProducts, GiveTheSameBitsLater) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16})
    for (const int kind : {0, 1, 2, 3}) {
      const Whole at_once = gradients(keys_of_kind(kind), compute, false);
      const Whole late = gradients(keys_of_kind(kind), compute, true);
      EXPECT_TRUE(at_once == late) << kind;
      double sum = 0.0;
      for (const auto& [name, values] : at_once)
        for (const double g : values) sum += std::abs(g);
      EXPECT_GT(sum, 0.0);
    }
}

// A plain block's feed-forward recomputes what it keeps in its own backward, mixtures too.
TEST(Recompute, OfFeedForwardsGivesTheSameBits) {
  for (const DType compute : {DType::kF64, DType::kBF16})
    for (const int kind : {1, 2, 3}) {
      Recipe recipe = recipe_of(keys_of_kind(kind), 2, 12);
      const auto gradients_of = [&] {
        TinyRank rank(recipe, {.compute = compute});
        rank.step(batch_of({{5, 1, 6}, {12}}, 11));
        return whole_gradients(rank.model);
      };
      const Whole kept = gradients_of();
      recipe.train.recompute = true;
      EXPECT_TRUE(kept == gradients_of()) << kind;
    }
}

}  // namespace
}  // namespace ashlar::nn
