// Closed formulas against the published tables and against a count over tensor shapes.
#include "ashlar/sizing/model.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ashlar/spec/recipe.h"

namespace ashlar {
namespace {

ModelKeys spec_of(const std::string& recipe) {
  return load_recipe(std::string(ASHLAR_FIXTURES) + "/../../recipes/" + recipe + ".toml", {}).model;
}

ModelKeys tiny() {
  ModelKeys m;
  m.vocab_size = 11;
  m.hidden_size = 8;
  m.num_hidden_layers = 3;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 4;
  m.num_experts = 3;
  m.moe_intermediate_size = 5;
  m.router_hidden_size = 6;
  m.layer_types = {LayerType::kHybrid, LayerType::kHybridSliding, LayerType::kHybrid};
  m.sliding_window = 3;
  return m;
}

// The same count from the list of checkpoint tensors.
int64_t counted(const ModelKeys& m) {
  const int64_t H = m.hidden_size, R = m.router_hidden_size, E = m.num_experts;
  const int64_t F = m.moe_intermediate_size, D = m.head_dim, C = m.q_dim() + m.kv_dim();
  using Shape = std::vector<int64_t>;
  std::vector<Shape> shapes = {{m.vocab_size, H}, {H}, {H}, {H}};
  for (int64_t layer = 0; layer < m.num_hidden_layers; ++layer) {
    const std::vector<Shape> block = {{H},
                                      {m.q_dim(), H},
                                      {m.kv_dim(), H},
                                      {m.kv_dim() / 2, H},
                                      {m.kv_dim() / 2, H},
                                      {C, 1, 2},
                                      {C},
                                      {C, D, 2},
                                      {C},
                                      {m.num_key_value_heads},
                                      {H, m.q_dim()},
                                      {H},
                                      {H},
                                      {H},
                                      {H},
                                      {H},
                                      {R, H},
                                      {R},
                                      {R},
                                      {R, R},
                                      {R},
                                      {R, R},
                                      {R},
                                      {E + 1, R},
                                      {E, 2 * F, H},
                                      {E, H, F},
                                      {H},
                                      {H},
                                      {H},
                                      {H}};
    shapes.insert(shapes.end(), block.begin(), block.end());
    if (layer > 0) shapes.push_back({R});
  }
  int64_t sum = 0;
  for (const Shape& shape : shapes)
    sum += std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<int64_t>());
  return sum;
}

TEST(ModelParameters, TableOfTheBaseModel) {
  const ModelKeys keys = spec_of("zaya1-8b");
  const ModelSpec model = model_of(keys);
  const ModelParameters p = model_parameters(model);
  const CcaParameters a =
      cca_parameters(std::get<CcaSpec>(model.blocks[0].mixer), keys.hidden_size);
  const MoeParameters m =
      moe_parameters(std::get<MoeSpec>(model.blocks[0].feed_forward), keys.hidden_size);
  EXPECT_EQ(a.q_proj, 2'097'152);
  EXPECT_EQ(a.k_proj, 524'288);
  EXPECT_EQ(a.v_proj, 262'144);
  EXPECT_EQ(a.conv_depthwise, 3'840);
  EXPECT_EQ(a.conv_grouped, 328'960);
  EXPECT_EQ(a.temp, 2);
  EXPECT_EQ(a.o_proj, 2'097'152);
  EXPECT_EQ(a.total, 5'575'682);
  EXPECT_EQ(m.router_down, 524'544);
  EXPECT_EQ(m.router_norm, 256);
  EXPECT_EQ(m.router_fc, 65'792);
  EXPECT_EQ(m.router_out, 4'352);
  EXPECT_EQ(m.router, 660'736);
  EXPECT_EQ(m.router_scale, 256);
  EXPECT_EQ(m.expert, 12'582'912);
  EXPECT_EQ(m.experts, 201'326'592);
  EXPECT_EQ(p.norms / model.num_blocks(), 4'096);
  EXPECT_EQ(p.residual_scaling / model.num_blocks(), 16'384);
  EXPECT_EQ(a.total + m.router + m.experts + 10 * keys.hidden_size, 207'583'490);
  EXPECT_EQ(p.blocks, 8'303'349'584);
  EXPECT_EQ(p.embedding, 537'133'056);
  EXPECT_EQ(p.other, 6'144);
  EXPECT_EQ(p.total, 8'840'488'784);
  EXPECT_EQ(p.without_embedding, 8'303'355'728);
  EXPECT_EQ(p.buffers, 680);
  EXPECT_EQ(p.active, 753'608'528);
}

TEST(ModelParameters, TableOfThe74B) {
  const ModelKeys keys = spec_of("zaya1-74b");
  const ModelSpec model = model_of(keys);
  const ModelParameters p = model_parameters(model);
  const CcaParameters a =
      cca_parameters(std::get<CcaSpec>(model.blocks[0].mixer), keys.hidden_size);
  const MoeParameters m =
      moe_parameters(std::get<MoeSpec>(model.blocks[0].feed_forward), keys.hidden_size);
  EXPECT_EQ(a.q_proj, 8'388'608);
  EXPECT_EQ(a.k_proj, 1'048'576);
  EXPECT_EQ(a.v_proj, 524'288);
  EXPECT_EQ(a.conv_depthwise, 6'912);
  EXPECT_EQ(a.conv_grouped, 592'128);
  EXPECT_EQ(a.temp, 2);
  EXPECT_EQ(a.o_proj, 8'388'608);
  EXPECT_EQ(a.total, 19'473'410);
  EXPECT_EQ(m.router_down, 1'048'832);
  EXPECT_EQ(m.router_norm, 256);
  EXPECT_EQ(m.router_fc, 65'792);
  EXPECT_EQ(m.router_out, 6'400);
  EXPECT_EQ(m.router, 1'187'072);
  EXPECT_EQ(m.expert, 50'331'648);
  EXPECT_EQ(m.experts, 1'207'959'552);
  EXPECT_EQ(p.norms / model.num_blocks(), 8'192);
  EXPECT_EQ(p.residual_scaling / model.num_blocks(), 32'768);
  EXPECT_EQ(a.total + m.router + m.experts + 10 * keys.hidden_size, 1'228'660'994);
  EXPECT_EQ(p.blocks, 73'719'674'744);
  EXPECT_EQ(p.embedding, 1'074'266'112);
  EXPECT_EQ(p.other, 12'288);
  EXPECT_EQ(p.total, 74'793'953'144);
  EXPECT_EQ(p.without_embedding, 73'719'687'032);
  EXPECT_EQ(p.buffers, 1'500);
  EXPECT_EQ(p.active, 4'262'012'792);
}

TEST(ModelParameters, AgreeWithTheSumOverTensors) {
  EXPECT_EQ(model_parameters(model_of(tiny())).total, 3'970);
  EXPECT_EQ(model_parameters(model_of(spec_of("zaya1-nano"))).total, 22'624'204);    // 22.6 M
  EXPECT_EQ(model_parameters(model_of(spec_of("zaya1-small"))).total, 385'550'360);  // 385.6 M
  for (const char* name : {"zaya1-nano", "zaya1-small", "zaya1-8b", "zaya1-74b"})
    EXPECT_EQ(model_parameters(model_of(spec_of(name))).total, counted(spec_of(name))) << name;
  EXPECT_EQ(model_parameters(model_of(tiny())).total, counted(tiny()));
}

// Llama 3.1 8B as it was released: embedding, 32 blocks, norm, head.
TEST(ModelParameters, OfDenseModels) {
  const ModelParameters p = model_parameters(model_of(spec_of("llama3-8b")));
  const int64_t H = 4096, block = H * (4096 + 2 * 1024) + 4096 * H + 3 * H * 14336 + 2 * H;
  EXPECT_EQ(p.without_embedding, 32 * block + H);
  EXPECT_EQ(p.embedding, 128'256 * H);
  EXPECT_EQ(p.head, p.embedding);
  EXPECT_EQ(p.total, 8'030'261'248);
  EXPECT_EQ(p.active, p.without_embedding);
  EXPECT_EQ(p.buffers, 0);
  // 8.59 billion weights in the blocks, as the comparison states them.
  EXPECT_EQ(model_parameters(model_of(spec_of("tsp-7b"))).without_embedding,
            int64_t{8'589'934'592} + 65 * H);
  ModelKeys qwen = spec_of("llama-nano");
  const int64_t plain = model_parameters(model_of(qwen)).total;
  qwen.qk_norm = QkNorm::kRms;
  EXPECT_EQ(model_parameters(model_of(qwen)).total, plain + 7 * 2 * 64);
  qwen.attention_output_gate = true;
  EXPECT_EQ(model_parameters(model_of(qwen)).total,
            plain + 7 * (2 * 64 + qwen.hidden_size * qwen.q_dim()));
}

// Each recurrence, beside what dry runs count of the recipes; and the flop of a state.
TEST(ModelParameters, OfLinearMixers) {
  const ModelKeys nano = spec_of("linear-nano");
  const int64_t H = 512, mlp = 3 * H * 1408 + 2 * H, common = 5 * H * H + 64;
  EXPECT_EQ(model_parameters(model_of(nano)).without_embedding,
            7 * (mlp + common + 16 * (H + 512) + 512) + H);
  const auto blocks = [&](LinearKind kind, int64_t taps) {
    ModelKeys keys = nano;
    keys.linear.kind = kind, keys.linear.conv_taps = taps;
    return (model_parameters(model_of(keys)).without_embedding - H) / 7 - mlp;
  };
  EXPECT_EQ(blocks(LinearKind::kBasic, 0), common);
  EXPECT_EQ(blocks(LinearKind::kRetention, 3), common + 3 * 3 * H);
  EXPECT_EQ(blocks(LinearKind::kLightning, 0), common - 64 + H);
  EXPECT_EQ(blocks(LinearKind::kGatedDelta, 4), common + 4 * 3 * H + 2 * 8 * H + 2 * 8);
  // Flop of a token do not depend on the length; a state is used twice, three times by the delta
  // rule.
  const ModelSpec spec = model_of(nano);
  EXPECT_EQ(model_flop(spec, 2048).attention, model_flop(spec, 1 << 20).attention);
  EXPECT_EQ(model_flop(spec, 2048).attention, 7 * 2 * 2 * 8 * 64 * 64.0);
  ModelKeys delta = nano;
  delta.linear.kind = LinearKind::kGatedDelta;
  EXPECT_EQ(model_flop(model_of(delta), 2048).attention, 7 * 2 * 3 * 8 * 64 * 64.0);
}

// Qwen3-30B-A3B as it was released; and a shared expert with its gate, and biases.
TEST(ModelParameters, OfMixturesWithALinearRouter) {
  const ModelParameters p = model_parameters(model_of(spec_of("qwen3-30b-a3b")));
  const int64_t H = 2048, expert = 3 * H * 768;
  const int64_t block = 2 * H * (4096 + 512) + 2 * 128 + 128 * H + 2 * H;  // without experts
  EXPECT_EQ(p.without_embedding, 48 * (block + 128 * expert) + H);
  EXPECT_EQ(p.active, 48 * (block + 8 * expert) + H);
  EXPECT_EQ(p.embedding, 151'936 * H);
  EXPECT_EQ(p.head, p.embedding);
  EXPECT_EQ(p.total, 30'532'122'624);
  EXPECT_NEAR(double(p.active + p.embedding + p.head), 3.3e9, 0.06e9);  // published
  EXPECT_EQ(p.buffers, 0);
  ModelKeys nano = spec_of("moe-nano");
  const ModelParameters plain = model_parameters(model_of(nano));
  EXPECT_EQ(plain.total, 70'291'840);
  nano.shared_expert_intermediate_size = 100, nano.shared_expert_gate = true;
  nano.linear_router.expert_bias = true;
  const ModelParameters shared = model_parameters(model_of(nano));
  const int64_t added = 7 * (3 * 512 * 100 + 512);
  EXPECT_EQ(shared.total, plain.total + added);
  EXPECT_EQ(shared.active, plain.active + added);
  EXPECT_EQ(shared.buffers, 7 * 8);
  const MoeParameters m =
      moe_parameters(std::get<MoeSpec>(model_of(nano).blocks[0].feed_forward), nano.hidden_size);
  EXPECT_EQ(m.router, 8 * 512);
  EXPECT_EQ(m.shared, 3 * 512 * 100 + 512);
  EXPECT_EQ(m.router_scale, 0);
}

TEST(ModelFlop, OfMixturesWithALinearRouter) {
  const ModelFlop flop = model_flop(model_of(spec_of("qwen3-30b-a3b")), 4096);
  const double H = 2048;
  EXPECT_EQ(flop.blocks, 2.0 * 48 * (2 * H * (4096 + 512) + 128 * H + 8 * 3 * H * 768));
  EXPECT_EQ(flop.head, 2.0 * 151936 * H);
  ModelKeys nano = spec_of("moe-nano");
  const double plain = model_flop(model_of(nano), 512).blocks;
  nano.shared_expert_intermediate_size = 100, nano.shared_expert_gate = true;
  EXPECT_EQ(model_flop(model_of(nano), 512).blocks, plain + 2 * 7 * (3 * 512 * 100 + 512));
}

TEST(ModelFlop, OfDenseModels) {
  const ModelFlop flop = model_flop(model_of(spec_of("llama3-8b")), 8192);
  const double H = 4096;
  EXPECT_EQ(flop.blocks, 2.0 * 32 * (H * (4096 + 2 * 1024) + 4096 * H + 3 * H * 14336));
  EXPECT_EQ(flop.head, 2.0 * 128256 * H);
  EXPECT_EQ(flop.attention, 32.0 * 4 * 4096 * 8193 / 2);
  ModelKeys gated = spec_of("llama3-8b");
  gated.attention_output_gate = true;
  EXPECT_EQ(model_flop(model_of(gated), 8192).blocks, flop.blocks + 2.0 * 32 * H * 4096);
}

TEST(ModelFlop, TablesAt4096) {
  const ModelFlop base = model_flop(model_of(spec_of("zaya1-8b")), 4096);
  EXPECT_EQ(base.blocks, 1'505'259'520.0);
  EXPECT_EQ(base.head, 1'074'266'112.0);
  EXPECT_EQ(base.attention, 335'626'240.0);
  EXPECT_EQ(base.forward, 2'915'151'872.0);
  EXPECT_EQ(base.training, 8'745'455'616.0);
  EXPECT_NEAR(base.training - 3 * base.head, 5.5227e9, 5e4);
  // A window of 4,097 hides nothing of 4,096 tokens.
  const ModelFlop large = model_flop(model_of(spec_of("zaya1-74b")), 4096);
  EXPECT_EQ(large.blocks, 8'518'379'520.0);
  EXPECT_EQ(large.head, 2'148'532'224.0);
  EXPECT_EQ(large.attention, 1'006'878'720.0);
  EXPECT_EQ(large.forward, 11'673'790'464.0);
  EXPECT_EQ(large.training, 35'021'371'392.0);
  EXPECT_NEAR(large.training - 3 * large.head, 28.5758e9, 5e4);
}

TEST(ModelFlop, LongContexts) {
  const ModelSpec base = model_of(spec_of("zaya1-8b"));
  const ModelFlop mid = model_flop(base, 32768), longest = model_flop(base, 131072);
  EXPECT_NEAR(mid.attention, 2.6844e9, 5e4);
  EXPECT_NEAR(mid.forward, 5.2640e9, 5e4);
  EXPECT_NEAR(mid.training, 15.7919e9, 5e4);
  EXPECT_NEAR(longest.attention, 10.7375e9, 5e4);
  EXPECT_NEAR(longest.forward, 13.3170e9, 5e4);
  EXPECT_NEAR(longest.training, 39.9511e9, 5e4);
}

TEST(ModelFlop, WindowsEqualACountOfPairs) {
  for (int64_t window : {1, 3, 4, 5, 7, 100}) {
    for (int64_t tokens : {1, 2, 3, 5, 17}) {
      ModelKeys m = tiny();
      m.sliding_window = window;
      int64_t pairs = 0;
      for (int64_t layer = 0; layer < 3; ++layer)
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t s = 0; s <= t; ++s) pairs += layer != 1 || s > t - window;
      const double flop = 4.0 * double(m.q_dim()) * double(pairs);
      EXPECT_NEAR(model_flop(model_of(m), tokens).attention * double(tokens), flop, 1e-9 * flop)
          << "window " << window << ", " << tokens << " tokens";
    }
  }
}

TEST(ModelFlop, OfTrainingThe8BAt4096) {
  EXPECT_EQ(model_flop(model_of(spec_of("zaya1-8b")), 4096).training, 8'745'455'616.0);
}

}  // namespace
}  // namespace ashlar
