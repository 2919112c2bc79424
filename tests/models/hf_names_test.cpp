// Lists of tensors: published counts and totals, and the names of both layouts.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ashlar/core/files.h"
#include "ashlar/models/hf/names.h"
#include "tests/models/hf_test_util.h"

namespace ashlar::models {
namespace {

ModelKeys spec_of(const std::string& name) {
  const auto files = posix_files();
  const std::string path = test_data("hf_configs/" + name + ".json");
  return keys_of(parse_hf_config(read_text(*files, path), path).model);
}

std::vector<LogicalTensor> logical(const ModelKeys& spec, DType dtype = DType::kF32) {
  return nn::logical_tensors(model_of(spec), dtype);
}

int64_t elements(const ModelKeys& spec, Role role) {
  int64_t sum = 0;
  for (const LogicalTensor& tensor : logical(spec))
    if (tensor.role == role) sum += tensor.global_shape.numel();
  return sum;
}

TEST(HfNames, PublishedCountsAndTotals) {
  const struct {
    ModelKeys spec;
    size_t native, legacy;
    int64_t parameters, buffers;
  } cases[] = {
      {spec_of("base_legacy2025"), 1283, 2483, 8840488784, 680},
      {spec_of("zaya1_8b_native"), 1283, 2483, 8840488784, 680},
      {spec_of("zaya1_74b_native"), 1923, 4683, 74793953144, 1500},
      {odd_spec(), 99, 99 + 3 * 2 * (3 - 1), 3970, 12},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(logical(c.spec).size(), c.native);
    const ModelSpec model = model_of(c.spec);
    EXPECT_EQ(file_tensors(logical(c.spec), model.blocks, HfLayout::kNative).size(), c.native);
    EXPECT_EQ(file_tensors(logical(c.spec), model.blocks, HfLayout::kLegacy).size(), c.legacy);
    EXPECT_EQ(num_file_tensors(model, HfLayout::kNative), int64_t(c.native));
    EXPECT_EQ(num_file_tensors(model, HfLayout::kLegacy), int64_t(c.legacy));
    EXPECT_EQ(elements(c.spec, Role::kParameter), c.parameters);
    EXPECT_EQ(elements(c.spec, Role::kBuffer), c.buffers);
  }
}

TEST(HfNames, WithoutTheEmbedding) {
  const ModelKeys small = spec_of("zaya1_8b_native"), large = spec_of("zaya1_74b_native");
  EXPECT_EQ(elements(small, Role::kParameter) - small.vocab_size * small.hidden_size, 8303355728);
  EXPECT_EQ(elements(large, Role::kParameter) - large.vocab_size * large.hidden_size, 73719687032);
}

TEST(HfNames, BalancingBiasesAreWideBuffers) {
  for (const LogicalTensor& tensor : logical(odd_spec(), DType::kBF16)) {
    const bool biases = tensor.name.ends_with("balancing_biases");
    EXPECT_EQ(tensor.dtype, biases ? DType::kF32 : DType::kBF16) << tensor.name;
    EXPECT_EQ(tensor.role, biases ? Role::kBuffer : Role::kParameter) << tensor.name;
  }
}

TEST(HfNames, PartsTileTheirTensor) {
  const ModelKeys spec = odd_spec();
  for (const HfLayout layout : {HfLayout::kNative, HfLayout::kLegacy}) {
    const auto natives = logical(spec);
    std::vector<int64_t> covered(natives.size());
    std::set<std::string> names;
    for (const FileTensor& tensor : file_tensors(natives, model_of(spec).blocks, layout)) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      ASSERT_EQ(tensor.rows.size(), 1u) << tensor.name;
      const FileRows& rows = tensor.rows[0];
      EXPECT_EQ(rows.part * tensor.shape.numel(), covered[rows.native]) << tensor.name;
      covered[rows.native] += tensor.shape.numel();
    }
    for (size_t n = 0; n < natives.size(); ++n)
      EXPECT_EQ(covered[n], natives[n].global_shape.numel()) << natives[n].name;
  }
}

// The whole map, written out for the first, a middle and the last block.
TEST(HfNames, LegacyNames) {
  const ModelKeys spec = odd_spec();
  const auto natives = logical(spec);
  std::map<std::string, std::string> map;  // legacy name -> native name, "[e]" for an expert
  for (const FileTensor& tensor : file_tensors(natives, model_of(spec).blocks, HfLayout::kLegacy)) {
    const FileRows& rows = tensor.rows.at(0);
    map[tensor.name] =
        natives[rows.native].name + (rows.num_parts > 1 ? fmt::format("[{}]", rows.part) : "");
  }
  std::map<std::string, std::string> expected = {
      {"model.embed_tokens.weight", "model.embed_tokens.weight"},
      {"model.layers.0.res_scale.hidden_states_scale", "model.input_hidden_states_scale"},
      {"model.layers.0.res_scale.hidden_states_bias", "model.input_hidden_states_bias"},
      {"model.final_norm.weight", "model.norm.weight"},
  };
  const char* merges[] = {"hidden_states_scale", "hidden_states_bias", "residual_scale",
                          "residual_bias"};
  for (const char* name : merges)
    expected[fmt::format("model.res_scale.{}", name)] =
        fmt::format("model.layers.2.post_mlp_residual_scale.{}", name);
  for (int l = 0; l < 3; ++l) {
    const std::string native = fmt::format("model.layers.{}.", l);
    const std::string a = fmt::format("model.layers.{}.", 2 * l);
    const std::string b = fmt::format("model.layers.{}.", 2 * l + 1);
    const std::string qkv = a + "self_attn.qkv.", router = b + "zaya_block.router.";
    const auto put = [&](const std::string& legacy, const char* own) {
      expected[legacy] = native + own;
    };
    put(a + "input_norm.weight", "input_layernorm.weight");
    put(b + "input_norm.weight", "post_attention_layernorm.weight");
    put(qkv + "linear_q.weight", "self_attn.qkv_proj.q_proj.weight");
    put(qkv + "linear_k.weight", "self_attn.qkv_proj.k_proj.weight");
    put(qkv + "val_proj1.weight", "self_attn.qkv_proj.v_proj_current.weight");
    put(qkv + "val_proj2.weight", "self_attn.qkv_proj.v_proj_delayed.weight");
    put(qkv + "conv_qk.0.weight", "self_attn.qkv_proj.conv_qk_depthwise.weight");
    put(qkv + "conv_qk.0.bias", "self_attn.qkv_proj.conv_qk_depthwise.bias");
    put(qkv + "conv_qk.1.weight", "self_attn.qkv_proj.conv_qk_grouped.weight");
    put(qkv + "conv_qk.1.bias", "self_attn.qkv_proj.conv_qk_grouped.bias");
    put(qkv + "temp", "self_attn.qk_norm.temp");
    put(a + "self_attn.o_proj.weight", "self_attn.o_proj.weight");
    put(router + "down_proj.weight", "mlp.gate.down_proj.weight");
    put(router + "down_proj.bias", "mlp.gate.down_proj.bias");
    if (l > 0) put(router + "router_states_scale", "mlp.gate.router_states_scale");
    put(router + "rmsnorm_eda.weight", "mlp.gate.router_mlp.norm.weight");
    put(router + "router_mlp.0.weight", "mlp.gate.router_mlp.fc1.weight");
    put(router + "router_mlp.0.bias", "mlp.gate.router_mlp.fc1.bias");
    put(router + "router_mlp.2.weight", "mlp.gate.router_mlp.fc2.weight");
    put(router + "router_mlp.2.bias", "mlp.gate.router_mlp.fc2.bias");
    put(router + "router_mlp.4.weight", "mlp.gate.router_mlp.out_proj.weight");
    put(router + "balancing_biases", "mlp.gate.balancing_biases");
    for (int e = 0; e < 3; ++e) {
      const std::string expert = fmt::format("{}zaya_block.experts.local_experts.{}.", b, e);
      expected[expert + "linear_fc1.weight"] =
          fmt::format("{}mlp.experts.gate_up_proj[{}]", native, e);
      expected[expert + "linear_fc2.weight"] =
          fmt::format("{}mlp.experts.down_proj[{}]", native, e);
    }
    for (const char* name : merges) {
      expected[fmt::format("{}res_scale.{}", b, name)] =
          fmt::format("{}post_attention_residual_scale.{}", native, name);
      if (l < 2)
        expected[fmt::format("model.layers.{}.res_scale.{}", 2 * l + 2, name)] =
            fmt::format("{}post_mlp_residual_scale.{}", native, name);
    }
  }
  EXPECT_EQ(map, expected);
}

TEST(HfNames, PublishedShapesOfOneBlock) {
  std::map<std::string, std::string> shapes;
  for (const LogicalTensor& tensor : logical(spec_of("zaya1_74b_native")))
    shapes[tensor.name] = tensor.global_shape.to_string();
  const std::string block = "model.layers.7.";
  EXPECT_EQ(shapes[block + "self_attn.qkv_proj.q_proj.weight"], "[2048, 4096]");
  EXPECT_EQ(shapes[block + "self_attn.qkv_proj.k_proj.weight"], "[256, 4096]");
  EXPECT_EQ(shapes[block + "self_attn.qkv_proj.v_proj_delayed.weight"], "[128, 4096]");
  EXPECT_EQ(shapes[block + "self_attn.qkv_proj.conv_qk_grouped.weight"], "[2304, 128, 2]");
  EXPECT_EQ(shapes[block + "self_attn.o_proj.weight"], "[4096, 2048]");
  EXPECT_EQ(shapes[block + "mlp.gate.router_mlp.out_proj.weight"], "[25, 256]");
  EXPECT_EQ(shapes[block + "mlp.experts.gate_up_proj"], "[24, 8192, 4096]");
  EXPECT_EQ(shapes[block + "mlp.experts.down_proj"], "[24, 4096, 4096]");
}

TEST(HfNames, SmoeBlocksAreZayaBlocks) {
  EXPECT_EQ(canonical_name("model.layers.1.smoe_block.router.down_proj.bias"),
            "model.layers.1.zaya_block.router.down_proj.bias");
  EXPECT_EQ(canonical_name("model.norm.weight"), "model.norm.weight");
}

}  // namespace
}  // namespace ashlar::models
