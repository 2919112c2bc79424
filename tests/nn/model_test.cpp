// Shapes and counts of real configurations on the meta device, and initial weights.
#include "ashlar/nn/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/nn/init.h"
#include "ashlar/sizing/zaya.h"
#include "golden.h"

namespace ashlar::nn {
namespace {

ModelSpec zaya_8b() {
  ModelSpec s;
  s.vocab_size = 262272, s.hidden_size = 2048, s.num_hidden_layers = 40, s.num_attention_heads = 8;
  s.num_key_value_heads = 2, s.head_dim = 128, s.num_experts = 16, s.moe_intermediate_size = 2048;
  s.router_hidden_size = 256;
  s.layer_types.assign(40, LayerType::kHybrid);
  return s;
}

ModelSpec zaya_74b() {
  ModelSpec s = zaya_8b();
  s.hidden_size = 4096, s.num_hidden_layers = 60, s.num_attention_heads = 16, s.num_experts = 24;
  s.moe_intermediate_size = 4096, s.sliding_window = 4097;
  s.layer_types.clear();
  for (int l = 0; l < 60; ++l)
    s.layer_types.push_back(l % 2 == 0 ? LayerType::kHybridSliding : LayerType::kHybrid);
  return s;
}

TEST(Model, ParameterCountsOnMeta) {
  const std::pair<ModelSpec, int64_t> cases[] = {
      {zaya_8b(), 8'840'488'784}, {zaya_74b(), 74'793'953'144}, {tiny_spec(), 3'970}};
  for (const auto& [spec, expected] : cases) {
    Allocator allocator(Device::kMeta);
    Arena workspace(Device::kMeta);
    Threads threads(1);
    const kernels::Context ctx{
        .device = Device::kMeta, .threads = &threads, .workspace = &workspace};
    const Model model(ctx, allocator, spec, DType::kBF16, 16, true);
    EXPECT_EQ(model.num_parameters(), expected);
    EXPECT_EQ(model.num_parameters(), zaya_parameters(spec).total);
    EXPECT_EQ(int64_t(model.parameters().size() + spec.layer_types.size()),
              int64_t(model.pieces().size()));  // one buffer a block
  }
}

TEST(Model, InitialWeightsAreAFunctionOfTheirNames) {
  const auto filled = [](int threads) {
    auto h = std::make_unique<Harness>(tiny_spec(), DType::kF32, 4, Keep::kAll, 0, threads);
    initialize(h->ctx, h->model.weights(), h->model.spec(), InitSpec{}, 7);
    return h;
  };
  const auto a = filled(1), b = filled(3);
  for (size_t p = 0; p < a->model.pieces().size(); ++p) {
    const Tensor x = a->model.pieces()[p].data, y = b->model.pieces()[p].data;
    ASSERT_EQ(std::memcmp(x.data, y.data, size_t(x.bytes())), 0)
        << a->model.pieces()[p].logical.name;
  }
}

TEST(Model, InitialWeightsHaveTheirDeviation) {
  ModelSpec spec = tiny_spec();
  spec.vocab_size = 4096, spec.hidden_size = 32;
  Harness h(spec, DType::kF32, 4, Keep::kAll, 0);
  InitSpec init;
  init.output_depth = true;
  initialize(h.ctx, h.model.weights(), spec, init, 3);
  const auto moments = [](const Tensor& t) {
    double sum = 0, square = 0;
    for (const float x : t.span<float>()) sum += x, square += double(x) * x;
    const double n = double(t.numel());
    return std::pair{sum / n, std::sqrt(square / n)};
  };
  const auto [mean, deviation] = moments(h.model.weights().embed);
  EXPECT_NEAR(mean, 0.0, 3e-4);
  EXPECT_NEAR(deviation, 0.02, 3e-4);
  EXPECT_NEAR(moments(h.model.weights().blocks[1].attention.o_proj).second, 0.02 / std::sqrt(6.0),
              1.2e-3);
  EXPECT_EQ(h.model.weights().blocks[0].attention.temp.as<float>()[0], 1.0f);
  EXPECT_EQ(h.model.weights().blocks[2].moe.router.balancing.as<float>()[3], -1.0f);
  EXPECT_EQ(h.model.weights().blocks[2].moe.router.balancing.as<float>()[2], 0.0f);
}

}  // namespace
}  // namespace ashlar::nn
