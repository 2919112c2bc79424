// Families with linear mixers: their config.json, the tensors in which the rows of several native
// ones lie head by head, and the buffers that MiniMax's files have beside the weights.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/models/hf_config_cases.h"
#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

using nlohmann::json;

const LayerType kLinearMoe{LinearSpec::kKind, MoeSpec::kKind};

json saved(const char* directory) {
  return json::parse(slurp(test_data(std::string(directory) + "/config.json")));
}
json minimax() {
  return saved("hf_minimax");
}
json qwen3_next() {
  return saved("hf_qwen3_next");
}

TEST(HfLinear, ReadsMiniMax) {
  const ModelKeys found = read(minimax());
  EXPECT_EQ(found.layer_types, (std::vector{kLinearMoe, kMoe, kLinearMoe, kMoe}));
  EXPECT_EQ(found.residual, Residual::kNormed);
  EXPECT_EQ(found.linear_attn, (ResidualFactors{1.2, 1.1}));
  EXPECT_EQ(found.full_attn, (ResidualFactors{1.3, 0.9}));
  EXPECT_EQ(found.mlp, (ResidualFactors{1.1, 0.8}));
  const ModelSpec spec = model_of(found);
  const auto& lightning = std::get<LinearSpec>(spec.blocks[2].mixer);
  EXPECT_EQ(lightning.kind, LinearKind::kLightning);
  EXPECT_EQ(lightning.num_key_heads, 4);
  EXPECT_EQ(lightning.num_value_heads, 4);
  EXPECT_EQ(lightning.value_head_dim, 8);
  EXPECT_EQ(lightning.conv_taps, 0);
  EXPECT_NEAR(lightning.slope_factor, 1 - 2 / (3 + 1e-5) + 1e-5, 1e-12);
  // Defaults of transformers for a silent config: every second block is linear, factors are 1.
  json silent = minimax();
  for (const char* key : {"layer_types", "rope_parameters", "rms_norm_eps", "mlp_beta_factor"})
    silent.erase(key);
  const ModelKeys other = read(silent);
  EXPECT_EQ(other.layer_types, (std::vector{kMoe, kLinearMoe, kMoe, kLinearMoe}));
  EXPECT_EQ(other.mlp, (ResidualFactors{1.1, 1.0}));
  EXPECT_EQ(other.rope_theta, 1e6);
  EXPECT_EQ(other.rms_norm_eps, 1e-5);
}

TEST(HfLinear, ReadsQwen3Next) {
  const ModelKeys found = read(qwen3_next());
  EXPECT_EQ(found.layer_types, (std::vector{kLinearMoe, kLinearMoe, kLinearMoe, kMoe}));
  EXPECT_TRUE(found.zero_centered_norm && found.attention_output_gate && found.shared_expert_gate);
  EXPECT_EQ(found.qk_norm, QkNorm::kRms);
  EXPECT_EQ(found.partial_rotary_factor, 0.5);
  EXPECT_EQ(found.linear.kind, LinearKind::kGatedDelta);
  EXPECT_EQ(found.linear.num_key_heads, 2);
  EXPECT_EQ(found.linear.num_value_heads, 4);
  EXPECT_EQ(found.linear.conv_taps, 4);
  EXPECT_EQ(found.shared_expert_intermediate_size, 24);
  // The first release of the model: no layer_types, and RoPE outside an object.
  json early = qwen3_next();
  early.erase("layer_types"), early.erase("rope_parameters"), early.erase("norm_topk_prob");
  early["full_attention_interval"] = 2, early["partial_rotary_factor"] = 0.25;
  early["rope_theta"] = 1e7, early["rope_scaling"] = nullptr;
  const ModelKeys other = read(early);
  EXPECT_EQ(other.layer_types, (std::vector{kLinearMoe, kMoe, kLinearMoe, kMoe}));
  EXPECT_EQ(other.partial_rotary_factor, 0.25);
  EXPECT_EQ(other.rope_theta, 1e7);
  EXPECT_TRUE(other.linear_router.renormalize);
  early.erase("full_attention_interval"), early.erase("partial_rotary_factor");
  EXPECT_EQ(read(early).layer_types, found.layer_types);
  EXPECT_EQ(read(early).partial_rotary_factor, 0.25);
}

TEST(HfLinear, DenseBlocksOfQwen3Next) {
  json config = qwen3_next();
  config["mlp_only_layers"] = {0, 3};
  const ModelKeys found = read(config);
  EXPECT_EQ(found.layer_types, (std::vector{LayerType::kLinearAttention, kLinearMoe, kLinearMoe,
                                            LayerType::kFullAttention}));
  EXPECT_EQ(found.intermediate_size, 48);
  const json written = json::parse(to_hf_config(found, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(written["mlp_only_layers"], json({0, 3}));
  EXPECT_EQ(read(written), found);
}

TEST(HfLinear, WhatItWritesReadsBackTheSame) {
  for (const json& config : {minimax(), qwen3_next()}) {
    const ModelKeys keys = read(config);
    ASSERT_TRUE(has_hf_config(keys));
    const json written = json::parse(to_hf_config(keys, DType::kF32, HfLayout::kNative));
    EXPECT_EQ(read(written), keys) << written.dump(2);
    for (const auto& [key, value] : config.items()) {
      // Ours is the length that transformers takes by default; others do not change the model.
      if (key == "block_size" || key == "router_aux_loss_coef" || key == "transformers_version" ||
          (key == "intermediate_size" && keys.intermediate_size == 0 &&
           config["model_type"] == "qwen3_next"))
        continue;
      ASSERT_TRUE(written.contains(key)) << key;
      EXPECT_EQ(written[key], value) << key;
    }
  }
}

// In one line, which names the first block and its residual.
TEST(HfLinear, NoFamilyStatesWhatNoneHas) {
  const auto refused = [](const json& config, auto change) {
    ModelKeys keys = read(config);
    EXPECT_TRUE(has_hf_config(keys));
    change(keys);
    EXPECT_FALSE(has_hf_config(keys));
    const std::string message = testing_support::message_of(
        ErrorKind::kConfig, [&] { to_hf_config(keys, DType::kF32, HfLayout::kNative); });
    EXPECT_NE(message.find("no Hugging Face architecture has a model of blocks such as linear+moe"),
              std::string::npos)
        << message;
  };
  for (const json& config : {minimax(), qwen3_next()}) {
    refused(config, [](ModelKeys& k) { k.residual = Residual::kScaled; });
    refused(config, [](ModelKeys& k) { k.attention_output_gate = !k.attention_output_gate; });
    refused(config, [](ModelKeys& k) { k.zero_centered_norm = !k.zero_centered_norm; });
    refused(config, [](ModelKeys& k) { k.linear.kind = LinearKind::kGla; });
    refused(config, [](ModelKeys& k) { k.layer_types[3].sliding = true, k.sliding_window = 8; });
    refused(config, [](ModelKeys& k) { k.layer_types[3].mixer = CcaSpec::kKind; });
    refused(config, [](ModelKeys& k) { k.linear_router.scale = 2; });
    refused(config, [](ModelKeys& k) {
      k.shared_expert_gate = false, k.shared_expert_intermediate_size ^= 24;
    });
  }
  refused(minimax(), [](ModelKeys& k) { k.linear.value_head_dim = 16; });
  refused(minimax(), [](ModelKeys& k) { k.linear.conv_taps = 4; });
  refused(minimax(), [](ModelKeys& k) { k.linear_router.renormalize = false; });
  refused(minimax(), [](ModelKeys& k) { k.layer_types[1] = LayerType::kFullAttention; });
  refused(qwen3_next(), [](ModelKeys& k) { k.linear.conv_taps = 0; });
  refused(qwen3_next(), [](ModelKeys& k) { k.linear.map = LinearMap::kElu; });
}

TEST(HfLinear, RefusesOtherArithmeticByItsKey) {
  const std::pair<const char*, json> minimaxes[] = {
      {"sliding_window", 0},
      {"layernorm_mlp_alpha", 3.5},
      {"attn_type_list", {0, 0, 0, 1}},
      {"layer_types", {"linear_attention"}},
      {"layer_types", {"linear_attention", "full_attention", "mamba", "full_attention"}},
      {"mlp_alpha_factor", "one"},
      {"mlp_alpha_factor", nullptr},
      {"hidden_act", "gelu"},
  };
  const std::pair<const char*, json> qwens[] = {
      {"attention_bias", "yes"},
      {"attn_output_gate", false},
      {"head_dim", nullptr},
      {"num_key_value_heads", nullptr},
      {"linear_num_key_heads", nullptr},
      {"linear_conv_kernel_dim", 0},
      {"shared_expert_intermediate_size", nullptr},
      {"shared_expert_intermediate_size", 0},
      {"mlp_only_layers", {0, 1, 2, 3}},
      {"decoder_sparse_step", 5},
      {"norm_topk_prob", 1},
  };
  const auto check = [](json config, const char* key, const json& value) {
    config[key] = value;
    const std::string message = refusal(config);
    EXPECT_TRUE(message.starts_with(std::string("config.json: ") + key)) << key << ": " << message;
  };
  for (const auto& [key, value] : minimaxes) check(minimax(), key, value);
  for (const auto& [key, value] : qwens) check(qwen3_next(), key, value);
}

// --- tensors ---

using HfLinearDirectory = HfDirectoryTest;

std::vector<float> floats_of(const Values& values, const std::string& name) {
  const std::vector<std::byte>& bytes = values.of(name);
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

std::vector<float> rows_of(const std::string& bytes, int64_t row,
                           const std::vector<int64_t>& rows) {
  std::vector<float> all(bytes.size() / sizeof(float)), some;
  std::memcpy(all.data(), bytes.data(), bytes.size());
  for (const int64_t r : rows)
    some.insert(some.end(), all.begin() + r * row, all.begin() + (r + 1) * row);
  return some;
}

// Rows [begin, begin + each) of every `stride`, of so many heads.
std::vector<int64_t> every(int64_t heads, int64_t stride, int64_t begin, int64_t each) {
  std::vector<int64_t> rows;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < each; ++i) rows.push_back(h * stride + begin + i);
  return rows;
}

// Parts that transformers cuts out of its tensors head by head equal the native tensors.
TEST_F(HfLinearDirectory, HeadsAreFoundInTheirRows) {
  const auto check = [&](const char* directory, const std::string& file_tensor,
                         const std::string& native, const std::vector<int64_t>& rows) {
    const HfModel model = HfModel::open(*files, test_data(directory));
    const auto tensors = take_apart(test_data(directory) + "/model.safetensors");
    const Values values = read_all(model, DType::kF32);
    EXPECT_EQ(floats_of(values, native), rows_of(tensors.at(file_tensor), 32, rows)) << native;
  };
  const std::string layer = "model.layers.2.", attention = "model.layers.3.";
  // 4 heads of [q | k | v] of 8 rows each.
  const char* parts[] = {"q_proj", "k_proj", "v_proj"};
  for (int64_t i = 0; i < 3; ++i)
    check("hf_minimax", layer + "self_attn.qkv_proj.weight",
          layer + "self_attn." + parts[i] + ".weight", every(4, 24, 8 * i, 8));
  // 2 key heads of [q 8 | k 8 | v 2 * 8 | z 2 * 8], and of [b 2 | a 2].
  const std::string qkvz = layer + "linear_attn.in_proj_qkvz.weight";
  check("hf_qwen3_next", qkvz, layer + "self_attn.q_proj.weight", every(2, 48, 0, 8));
  check("hf_qwen3_next", qkvz, layer + "self_attn.k_proj.weight", every(2, 48, 8, 8));
  check("hf_qwen3_next", qkvz, layer + "self_attn.v_proj.weight", every(2, 48, 16, 16));
  check("hf_qwen3_next", qkvz, layer + "self_attn.gate_proj.weight", every(2, 48, 32, 16));
  const std::string ba = layer + "linear_attn.in_proj_ba.weight";
  check("hf_qwen3_next", ba, layer + "self_attn.b_proj.weight", every(2, 4, 0, 2));
  check("hf_qwen3_next", ba, layer + "self_attn.a_proj.weight", every(2, 4, 2, 2));
  // 4 query heads of [q | gate] of 8 rows each.
  const std::string q = attention + "self_attn.q_proj.weight";
  check("hf_qwen3_next", q, q, every(4, 16, 0, 8));
  check("hf_qwen3_next", q, attention + "self_attn.gate_proj.weight", every(4, 16, 8, 8));
}

// A box that begins and ends inside heads, as a rank's share may.
TEST_F(HfLinearDirectory, APartOfInterleavedHeads) {
  const HfModel model = HfModel::open(*files, test_data("hf_qwen3_next"));
  const Values whole = read_all(model, DType::kF32);
  for (const char* name : {"v_proj", "k_proj"}) {
    const std::string native = std::string("model.layers.1.self_attn.") + name + ".weight";
    const auto at = std::find_if(model.tensors().begin(), model.tensors().end(),
                                 [&](const LogicalTensor& t) { return t.name == native; });
    const int64_t first = 5, rows = at->global_shape[0] - 8;
    Values part;
    part.add(*at, {{first, 3}, {rows, 7}}, DType::kF32);
    model.read(part.pieces[0]);
    const std::vector<float> all = floats_of(whole, native);
    for (int64_t r = 0, i = 0; r < rows; ++r)
      for (int64_t c = 0; c < 7; ++c, ++i)
        ASSERT_EQ(part.pieces[0].data.as<float>()[i], all[size_t((first + r) * 32 + 3 + c)]);
  }
}

// Whether MiniMax's files have it beside the weights.
bool is_buffer(const std::string& name) {
  return name.ends_with("_decay") || name.ends_with("slope_rate");
}

// Files of transformers are written again tensor for tensor, by name and bit for bit, but for the
// buffers, which are those of blocks of 256 tokens.
TEST_F(HfLinearDirectory, WritesTheTensorsThatTransformersDoes) {
  for (const char* directory : {"hf_minimax", "hf_qwen3_next"}) {
    const HfModel model = HfModel::open(*files, test_data(directory));
    write(directory, model.spec(), read_all(model, DType::kF32), kF32Native);
    auto wanted = take_apart(test_data(directory) + "/model.safetensors");
    auto found = take_apart(root / (std::string(directory) + "/model.safetensors"));
    ASSERT_EQ(found.size(), wanted.size());
    int64_t buffers = 0;
    for (const auto& [name, bytes] : wanted) {
      ASSERT_TRUE(found.contains(name)) << name;
      buffers += is_buffer(name);
      if (!is_buffer(name)) {
        EXPECT_TRUE(found[name] == bytes) << name;
      }
    }
    EXPECT_EQ(buffers, directory == std::string("hf_minimax") ? 2 * 4 : 0);
  }
}

TEST_F(HfLinearDirectory, ComesBackBitForBitWholeAndInShards) {
  for (const char* directory : {"hf_minimax", "hf_qwen3_next"})
    for (const int64_t most : {int64_t{5'000'000'000}, int64_t{9000}})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const ModelKeys keys = read(saved(directory));
        const Values values = random_values(keys, dtype);
        const std::string name = fmt::format("{}-{}-{}", directory, most, name_of(dtype));
        write(name, keys, values, {.dtype = dtype, .max_file_bytes = most});
        const HfModel model = open(name);
        EXPECT_EQ(to_json(model.spec()), to_json(model_of(keys)));
        expect_equal(values, read_all(model, dtype));
      }
}

// The decays over a block of tokens, against what transformers computed for blocks of 8.
TEST_F(HfLinearDirectory, BuffersAreWhatTransformersComputes) {
  const HfModel model = HfModel::open(*files, test_data("hf_minimax"));
  write("minimax", model.spec(), read_all(model, DType::kF32), kF32Native);
  const auto wanted = take_apart(test_data("hf_minimax") + "/model.safetensors");
  const auto found = take_apart(root / "minimax/model.safetensors");
  constexpr int64_t B = 256, b = 8;
  for (const std::string block : {"model.layers.0.self_attn.", "model.layers.2.self_attn."})
    for (int64_t head = 0; head < 4; ++head) {
      const auto ours = [&](const char* name, int64_t i) {
        return rows_of(found.at(block + name), 1, {i})[0];
      };
      const auto theirs = [&](const char* name, int64_t i) {
        return rows_of(wanted.at(block + name), 1, {i})[0];
      };
      const auto expect_near = [&](float a, float c) { EXPECT_NEAR(a, c, 1e-6f * std::abs(c)); };
      expect_near(ours("slope_rate", head), theirs("slope_rate", head));
      for (int64_t i = 0; i < b; ++i) {
        expect_near(ours("query_decay", head * B + i), theirs("query_decay", head * b + i));
        expect_near(ours("key_decay", head * B + B - b + i), theirs("key_decay", head * b + i));
        for (int64_t j = 0; j < b; ++j)
          expect_near(ours("diagonal_decay", (head * B + i) * B + j),
                      theirs("diagonal_decay", (head * b + i) * b + j));
      }
    }
}

// Released files have layers beside the model, which transformers passes over too.
TEST_F(HfLinearDirectory, ReadsPastWhatIsBesideTheModel) {
  const ModelKeys keys = read(qwen3_next());
  const Values values = random_values(keys, DType::kF32);
  write("mtp", keys, values, kF32Native);
  const auto add = [&](const char* name) {
    rewrite(root / "mtp", [&](std::vector<RawTensor>& tensors) {
      tensors.push_back({{name, DType::kF32, {1}}, std::string(4, '\0')});
    });
  };
  add("mtp.layers.0.input_layernorm.weight");
  expect_equal(values, read_all(open("mtp"), DType::kF32));
  add("model.layers.0.self_attn.slope_rate");  // of another family
  EXPECT_NE(message_of(ErrorKind::kData, [&] { open("mtp"); })
                .find("unexpected tensors: model.layers.0.self_attn.slope_rate"),
            std::string::npos);
}

TEST_F(HfLinearDirectory, SaysWhatDoesNotFit) {
  const auto message = [&](const char* directory, const char* key, const json& value) {
    const ModelKeys keys = read(saved(directory));
    const std::string name = std::string(directory) + key;
    write(name, keys, random_values(keys, DType::kF32), kF32Native);
    json config = json::parse(slurp(root / (name + "/config.json")));
    config[key] = value;
    spill(root / (name + "/config.json"), config.dump());
    return message_of(ErrorKind::kData, [&] { open(name); });
  };
  const auto says = [](const std::string& message, const char* what) {
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  says(message("hf_qwen3_next", "linear_value_head_dim", 16),
       "linear_num_value_heads * linear_value_head_dim is 64 but tensor "
       "model.layers.0.linear_attn.out_proj.weight has shape [32, 32]; expected 64 in dim 1");
  says(message("hf_qwen3_next", "shared_expert_intermediate_size", 12),
       "shared_expert_intermediate_size is 12 but tensor "
       "model.layers.0.mlp.shared_expert.down_proj.weight has shape [32, 24]");
  says(message("hf_qwen3_next", "linear_key_head_dim", 16),
       "model.layers.0.linear_attn.in_proj_qkvz.weight in");
  says(message("hf_minimax", "num_key_value_heads", 4),
       "num_key_value_heads * head_dim is 32 but tensor model.layers.1.self_attn.k_proj.weight");
  says(message("hf_minimax", "layer_types",
               {"full_attention", "full_attention", "linear_attention", "full_attention"}),
       "tensors are missing: model.layers.0.self_attn.q_proj.weight");
}

}  // namespace
}  // namespace ashlar::models
