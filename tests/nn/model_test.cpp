// Shapes and counts of real configurations on the meta device, and initial weights.
#include "ashlar/nn/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ashlar/nn/init.h"
#include "ashlar/sizing/model.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

ModelKeys zaya_8b() {
  ModelKeys s;
  s.vocab_size = 262272, s.hidden_size = 2048, s.num_hidden_layers = 40, s.num_attention_heads = 8;
  s.num_key_value_heads = 2, s.head_dim = 128, s.num_experts = 16, s.moe_intermediate_size = 2048;
  s.router_hidden_size = 256;
  s.layer_types.assign(40, LayerType::kHybrid);
  return s;
}

ModelKeys zaya_74b() {
  ModelKeys s = zaya_8b();
  s.hidden_size = 4096, s.num_hidden_layers = 60, s.num_attention_heads = 16, s.num_experts = 24;
  s.moe_intermediate_size = 4096, s.sliding_window = 4097;
  s.layer_types.clear();
  for (int l = 0; l < 60; ++l)
    s.layer_types.push_back(l % 2 == 0 ? LayerType::kHybridSliding : LayerType::kHybrid);
  return s;
}

TEST(Model, ParameterCountsOnMeta) {
  const std::pair<ModelKeys, int64_t> cases[] = {
      {zaya_8b(), 8'840'488'784}, {zaya_74b(), 74'793'953'144}, {tiny_spec(), 3'970}};
  for (const auto& [spec, expected] : cases) {
    Allocator allocator(Device::kMeta);
    Arena workspace(Device::kMeta);
    Threads threads(1);
    const kernels::Context ctx{
        .device = Device::kMeta, .threads = &threads, .workspace = &workspace};
    const Model model(ctx, allocator, model_of(spec), DType::kBF16, 16);
    EXPECT_EQ(model.num_parameters(), expected);
    EXPECT_EQ(model.num_parameters(), model_parameters(model_of(spec)).total);
    EXPECT_EQ(model.flat().ranges.size() + spec.layer_types.size(),
              model.pieces().size());  // one buffer a block
  }
}

TEST(Model, InitialWeightsAreAFunctionOfTheirNames) {
  const auto filled = [](int num_threads) {
    auto rank =
        std::make_unique<TinyRank>(recipe_of(tiny_spec(), 1, 4),
                                   TinyOptions{.compute = DType::kF32, .num_threads = num_threads});
    initialize(rank->ctx, rank->model.local().weights(), 7);
    return rank;
  };
  const auto a = filled(1), b = filled(3);
  const std::vector<Piece> xs = a->model.local().pieces(), ys = b->model.local().pieces();
  for (size_t p = 0; p < xs.size(); ++p)
    ASSERT_EQ(std::memcmp(xs[p].data.data, ys[p].data.data, size_t(xs[p].data.bytes())), 0)
        << xs[p].logical.name;
}

TEST(Model, InitialWeightsHaveTheirDeviation) {
  ModelKeys spec = tiny_spec();
  spec.vocab_size = 4096, spec.hidden_size = 32;
  Recipe recipe = recipe_of(spec, 1, 4);
  recipe.init.output_depth = true;
  const TinyRank rank(recipe, {.compute = DType::kF32, .num_threads = 2});
  const ModelWeights& weights = rank.model.local().weights();
  initialize(rank.ctx, weights, 3);
  const auto moments = [](const Tensor& t) {
    double sum = 0, square = 0;
    for (const float x : t.span<float>()) sum += x, square += double(x) * x;
    const double n = double(t.numel());
    return std::pair{sum / n, std::sqrt(square / n)};
  };
  const auto [mean, deviation] = moments(weights.embed.value);
  EXPECT_NEAR(mean, 0.0, 3e-4);
  EXPECT_NEAR(deviation, 0.02, 3e-4);
  const auto find = [&](std::string_view name) {
    Tensor found;
    weights.for_each([&](const ParameterInfo& info, const Tensor& value, const Tensor&) {
      if (info.name == name) found = value;
    });
    EXPECT_TRUE(found) << name;
    return found;
  };
  EXPECT_NEAR(moments(find("model.layers.1.self_attn.o_proj.weight")).second, 0.02 / std::sqrt(6.0),
              1.2e-3);
  EXPECT_EQ(find("model.layers.0.self_attn.qk_norm.temp").as<float>()[0], 1.0f);
  const Tensor biases = find("model.layers.2.mlp.gate.balancing_biases");
  EXPECT_EQ(biases.as<float>()[3], -1.0f);
  EXPECT_EQ(biases.as<float>()[2], 0.0f);
}

}  // namespace
}  // namespace ashlar::nn
