// Which optimizer and which decay every tensor of the model takes, written out by name.
//
// Muon takes the 2-D weights (projections, router, experts), AdamW the rest: convolutions, the tied
// embedding, the small router output, and all vectors.  Vectors do not decay.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ashlar/nn/model.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

struct Choice {
  Shape shape;
  OptimizerKind kind;
  bool decay;
  int64_t num_matrices = 1;
};

constexpr OptimizerKind kMuon = OptimizerKind::kMuon, kAdamW = OptimizerKind::kAdamW;

// tiny_spec(): V 11, H 8, 4 query and 2 kv heads of 4, 3 experts of 5, router 6.
std::map<std::string, Choice> expected_choices() {
  std::map<std::string, Choice> all = {
      {"model.embed_tokens.weight", {{11, 8}, kAdamW, true}},
      {"model.input_hidden_states_scale", {{8}, kAdamW, false}},
      {"model.input_hidden_states_bias", {{8}, kAdamW, false}},
      {"model.norm.weight", {{8}, kAdamW, false}},
  };
  const std::map<std::string, Choice> block = {
      {"input_layernorm.weight", {{8}, kAdamW, false}},
      {"post_attention_layernorm.weight", {{8}, kAdamW, false}},
      {"self_attn.qkv_proj.q_proj.weight", {{16, 8}, kMuon, true}},
      {"self_attn.qkv_proj.k_proj.weight", {{8, 8}, kMuon, true}},
      {"self_attn.qkv_proj.v_proj_current.weight", {{4, 8}, kMuon, true}},
      {"self_attn.qkv_proj.v_proj_delayed.weight", {{4, 8}, kMuon, true}},
      {"self_attn.qkv_proj.conv_qk_depthwise.weight", {{24, 1, 2}, kAdamW, true}},
      {"self_attn.qkv_proj.conv_qk_depthwise.bias", {{24}, kAdamW, false}},
      {"self_attn.qkv_proj.conv_qk_grouped.weight", {{24, 4, 2}, kAdamW, true}},
      {"self_attn.qkv_proj.conv_qk_grouped.bias", {{24}, kAdamW, false}},
      {"self_attn.qk_norm.temp", {{2}, kAdamW, false}},
      {"self_attn.o_proj.weight", {{8, 16}, kMuon, true}},
      {"mlp.gate.down_proj.weight", {{6, 8}, kMuon, true}},
      {"mlp.gate.down_proj.bias", {{6}, kAdamW, false}},
      {"mlp.gate.router_states_scale", {{6}, kAdamW, false}},
      {"mlp.gate.router_mlp.norm.weight", {{6}, kAdamW, false}},
      {"mlp.gate.router_mlp.fc1.weight", {{6, 6}, kMuon, true}},
      {"mlp.gate.router_mlp.fc1.bias", {{6}, kAdamW, false}},
      {"mlp.gate.router_mlp.fc2.weight", {{6, 6}, kMuon, true}},
      {"mlp.gate.router_mlp.fc2.bias", {{6}, kAdamW, false}},
      {"mlp.gate.router_mlp.out_proj.weight", {{4, 6}, kAdamW, true}},
      {"mlp.experts.gate_up_proj", {{3, 10, 8}, kMuon, true, 3}},
      {"mlp.experts.down_proj", {{3, 8, 5}, kMuon, true, 3}},
  };
  for (int l = 0; l < 3; ++l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    for (const auto& [name, choice] : block)
      if (l > 0 || name != "mlp.gate.router_states_scale") all.emplace(prefix + name, choice);
    for (const char* merge : {"post_attention_residual_scale.", "post_mlp_residual_scale."})
      for (const char* part :
           {"hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"})
        all.emplace(prefix + merge + part, Choice{{8}, kAdamW, false});
  }
  return all;
}

TEST(Parameters, EveryTensorHasTheOptimizerOfItsKind) {
  const std::map<std::string, Choice> expected = expected_choices();
  const ModelKeys spec = tiny_spec();
  std::set<std::string> seen, buffers;
  const auto check = [&](const ParameterInfo& info, const Tensor&, const Tensor&) {
    EXPECT_TRUE(seen.insert(info.name).second) << info.name << " comes twice";
    if (info.buffer) {
      buffers.insert(info.name);
      return;
    }
    const auto at = expected.find(info.name);
    ASSERT_NE(at, expected.end()) << info.name << " is not expected";
    EXPECT_EQ(info.shape, at->second.shape) << info.name << " " << info.shape.to_string();
    EXPECT_EQ(info.kind, at->second.kind) << info.name;
    EXPECT_EQ(info.decay, at->second.decay) << info.name;
    EXPECT_EQ(info.num_matrices, at->second.num_matrices) << info.name;
  };
  ModelWeights(model_of(spec)).for_each(check);
  EXPECT_EQ(seen.size(),
            99u);  // the native layout's count for this shape, balancing biases included
  EXPECT_EQ(seen.size(), expected.size() + 3);
  EXPECT_EQ(buffers, (std::set<std::string>{"model.layers.0.mlp.gate.balancing_biases",
                                            "model.layers.1.mlp.gate.balancing_biases",
                                            "model.layers.2.mlp.gate.balancing_biases"}));
}

TEST(Parameters, TheOptimizerSeesAllButTheBuffers) {
  const std::map<std::string, Choice> expected = expected_choices();
  const TinyRank rank(recipe_of(tiny_spec(), 1, 4), {.compute = DType::kF32});
  std::set<std::string> seen;
  for (const Parameter& p : rank.model.parameters()) {
    EXPECT_TRUE(seen.insert(p.logical.name).second) << p.logical.name;
    const auto at = expected.find(p.logical.name);
    ASSERT_NE(at, expected.end()) << p.logical.name;
    EXPECT_EQ(p.kind, at->second.kind) << p.logical.name;
    EXPECT_EQ(p.decay, at->second.decay) << p.logical.name;
    EXPECT_EQ(p.num_matrices, at->second.num_matrices) << p.logical.name;
    EXPECT_EQ(p.logical.global_shape, at->second.shape) << p.logical.name;
    EXPECT_EQ(p.gradient.shape, p.value.shape) << p.logical.name;
    EXPECT_EQ(p.logical.role, Role::kParameter);
    EXPECT_NE(p.gradient.data, p.value.data);
  }
  EXPECT_EQ(seen.size(), expected.size());
}

}  // namespace
}  // namespace ashlar::nn
