// Mixtures with a linear router: their config.json, as transformers 4 and 5 write it, and the names
// of their tensors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/models/hf/names.h"
#include "ashlar/spec/recipe.h"
#include "tests/models/hf_config_cases.h"
#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

using nlohmann::json;

// As transformers 4.x wrote that of Mixtral 8x7B.
json mixtral() {
  return json::parse(R"({
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})");
}

// As transformers 4.51 wrote that of Qwen3-30B-A3B.
json qwen3_30b() {
  return json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
}

TEST(HfMoe, ReadsMixtral) {
  const ModelKeys found = read(mixtral());
  EXPECT_EQ(found.layer_types, std::vector(32, kMoe));
  EXPECT_EQ(found.router, RouterKind::kLinear);
  EXPECT_EQ(found.num_experts, 8);
  EXPECT_EQ(found.linear_router.num_chosen, 2);
  EXPECT_TRUE(found.linear_router.renormalize);
  EXPECT_EQ(found.moe_intermediate_size, 14336);
  EXPECT_EQ(found.intermediate_size, 0);
  EXPECT_EQ(found.head_dim, 128);
  // Defaults of transformers for a silent config.
  json silent = mixtral();
  silent.erase("rms_norm_eps"), silent.erase("rope_theta");
  EXPECT_EQ(read(silent), found);
}

TEST(HfMoe, AWindowOfMixtralIsEveryBlocks) {
  json config = mixtral();
  config["sliding_window"] = 4096;
  const ModelKeys found = read(config);
  for (const BlockSpec& block : model_of(found).blocks) {
    EXPECT_EQ(std::get<AttentionSpec>(block.mixer).window, 4096);
    EXPECT_EQ(block.rope().theta, 1e6);
  }
  const json written = json::parse(to_hf_config(found, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(model_of(read(written)), model_of(found));
  EXPECT_EQ(written["sliding_window"], 4096);
}

// Whatever max_window_layers says, as in transformers.
TEST(HfMoe, AWindowOfQwen3IsEveryBlocks) {
  json config = qwen3_30b();
  config["use_sliding_window"] = true, config["sliding_window"] = 512;
  config["max_window_layers"] = 40, config["mlp_only_layers"] = {3};
  const ModelKeys found = read(config);
  for (const BlockSpec& block : model_of(found).blocks)
    EXPECT_EQ(std::get<AttentionSpec>(block.mixer).window, 512);
  const json written = json::parse(to_hf_config(found, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(model_of(read(written)), model_of(found));
  config["sliding_window"] = nullptr;
  EXPECT_FALSE(read(config).layer_types[0].sliding);
}

// The values that transformers assumes.
TEST(HfMoe, SilentFilesHaveTheFamilysNumbers) {
  json config = mixtral();
  config.erase("num_experts_per_tok"), config.erase("max_position_embeddings");
  EXPECT_EQ(read(config).linear_router.num_chosen, 2);
  EXPECT_EQ(read(config).max_position_embeddings, 131072);
  config = qwen3_30b();
  config.erase("num_experts_per_tok"), config.erase("num_key_value_heads");
  EXPECT_EQ(read(config).linear_router.num_chosen, 8);
  EXPECT_EQ(read(config).num_key_value_heads, 4);
}

TEST(HfMoe, BiasesOfQwen3) {
  json config = qwen3_30b();
  config["attention_bias"] = true;
  const ModelKeys keys = read(config);
  EXPECT_EQ(keys.attention_bias, AttentionBias::kQkvo);
  const json written = json::parse(to_hf_config(keys, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(written["attention_bias"], true);
  EXPECT_EQ(read(written), keys);
}

TEST(HfMoe, ReadsQwen3AsTheRecipeStatesIt) {
  const std::string path = std::string(ASHLAR_FIXTURES) + "/../../recipes/qwen3-30b-a3b.toml";
  EXPECT_EQ(to_json(model_of(read(qwen3_30b()))), to_json(model_of(load_recipe(path, {}).model)));
}

// transformers 5 says num_local_experts and rope_parameters.
TEST(HfMoe, ReadsBothVersions) {
  json five = qwen3_30b();
  five["num_local_experts"] = five["num_experts"];
  five["rope_parameters"] = {{"rope_theta", five["rope_theta"]}, {"rope_type", "default"}};
  five.erase("num_experts"), five.erase("rope_theta"), five.erase("rope_scaling");
  five["layer_types"] = std::vector<std::string>(48, "full_attention");
  EXPECT_EQ(read(five), read(qwen3_30b()));
  five["num_experts"] = 64;
  EXPECT_EQ(refusal(five),
            "config.json: num_experts is 64; expected num_local_experts, which is 128: keep one of "
            "them");
}

TEST(HfMoe, DenseBlocksAmongTheOthers) {
  json config = qwen3_30b();
  config["num_hidden_layers"] = 6, config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  const LayerType mlp = LayerType::kFullAttention;
  EXPECT_EQ(read(config).layer_types, (std::vector{mlp, kMoe, mlp, mlp, mlp, kMoe}));
  EXPECT_EQ(read(config).intermediate_size, 6144);
  const ModelKeys keys = read(config);
  const json written = json::parse(to_hf_config(keys, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(written["mlp_only_layers"], json({0, 2, 3, 4}));
  EXPECT_EQ(written["decoder_sparse_step"], 1);
  EXPECT_EQ(read(written), keys);
  config.erase("norm_topk_prob");  // then transformers does not divide
  EXPECT_FALSE(read(config).linear_router.renormalize);
}

TEST(HfMoe, WhatItWritesReadsBackTheSame) {
  for (const json& config : {mixtral(), qwen3_30b()}) {
    const ModelKeys keys = read(config);
    ASSERT_TRUE(has_hf_config(keys));
    const json written = json::parse(to_hf_config(keys, DType::kBF16, HfLayout::kNative));
    EXPECT_EQ(read(written), keys) << written.dump(2);
    for (const char* key : {"architectures", "model_type", "rope_theta", "num_experts_per_tok",
                            "hidden_size", "num_key_value_heads", "sliding_window"})
      EXPECT_EQ(written[key], config[key]) << key;
    // Each version of transformers reads its own key of these.
    EXPECT_EQ(written["num_local_experts"], keys.num_experts);
    EXPECT_EQ(written["rope_parameters"]["rope_theta"], config["rope_theta"]);
  }
  EXPECT_EQ(json::parse(to_hf_config(read(qwen3_30b()), DType::kF32, HfLayout::kNative))
                .at("num_experts"),
            128);
}

TEST(HfMoe, NoFamilyStatesWhatNoneHas) {
  const auto stated = [](const json& config, auto change) {
    ModelKeys keys = read(config);
    change(keys);
    return has_hf_config(keys);
  };
  const auto nothing = [](ModelKeys&) {};
  EXPECT_TRUE(stated(mixtral(), nothing) && stated(qwen3_30b(), nothing));
  EXPECT_FALSE(stated(mixtral(), [](ModelKeys& k) { k.linear_router.renormalize = false; }));
  EXPECT_TRUE(stated(qwen3_30b(), [](ModelKeys& k) { k.linear_router.renormalize = false; }));
  EXPECT_FALSE(
      stated(mixtral(), [](ModelKeys& k) { k.layer_types[1] = LayerType::kFullAttention; }));
  EXPECT_FALSE(stated(qwen3_30b(), [](ModelKeys& k) { k.layer_types[1].sliding = true; }));
  EXPECT_FALSE(stated(qwen3_30b(), [](ModelKeys& k) { k.attention_bias = AttentionBias::kQkv; }));
  EXPECT_FALSE(stated(mixtral(), [](ModelKeys& k) { k.attention_bias = AttentionBias::kQkvo; }));
  for (const json& config : {mixtral(), qwen3_30b()}) {
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.linear_router.pre_softmax = false; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.linear_router.scale = 2.5; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.linear_router.expert_bias = true; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.shared_expert_intermediate_size = 8; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.router = RouterKind::kMlp; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.residual = Residual::kScaled; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.zero_centered_norm = true; }));
    EXPECT_FALSE(stated(config, [](ModelKeys& k) { k.attention_output_gate = true; }));
  }
}

TEST(HfMoe, RefusesOtherArithmeticByItsKey) {
  const std::pair<const char*, json> mixtrals[] = {
      {"router_jitter_noise", nullptr},
      {"num_experts_per_tok", 9},
      {"num_experts_per_tok", 0},
      {"num_local_experts", "eight"},
      {"hidden_act", "gelu"},
      {"num_key_value_heads", nullptr},
      {"sliding_window", 0},
      {"quantization_config", {{"bits", 4}}},
      {"attention_bias", true},
      {"routed_scaling_factor", 2.5},
      {"scoring_func", "sigmoid"},
      {"n_shared_experts", 1},
  };
  const std::pair<const char*, json> qwens[] = {
      {"use_sliding_window", 1},
      {"attention_bias", 1},
      {"head_dim", nullptr},
      {"decoder_sparse_step", 0},
      {"decoder_sparse_step", nullptr},
      {"mlp_only_layers", {48}},
      {"mlp_only_layers", "none"},
      {"decoder_sparse_step", 49},
      {"moe_intermediate_size", 0},
      {"norm_topk_prob", 1},
      {"layer_types", {"sliding_attention"}},
      {"rope_scaling", 2},
  };
  const auto check = [](json config, const char* key, const json& value) {
    config[key] = value;
    const std::string message = refusal(config);
    EXPECT_TRUE(message.starts_with(std::string("config.json: ") + key)) << key << ": " << message;
  };
  for (const auto& [key, value] : mixtrals) check(mixtral(), key, value);
  for (const auto& [key, value] : qwens) check(qwen3_30b(), key, value);
}

// A small model of each family, whose files are made from its names.
ModelKeys small(bool qwen) {
  json config = qwen ? qwen3_30b() : mixtral();
  config["num_hidden_layers"] = 3, config["hidden_size"] = 8, config["vocab_size"] = 11;
  config["num_attention_heads"] = 2, config["num_key_value_heads"] = 1, config["head_dim"] = 4;
  config[qwen ? "num_experts" : "num_local_experts"] = 3, config["num_experts_per_tok"] = 2;
  config[qwen ? "moe_intermediate_size" : "intermediate_size"] = 5;
  config["bos_token_id"] = 1, config["eos_token_id"] = 2;
  if (qwen) config["mlp_only_layers"] = {0}, config["intermediate_size"] = 7;
  return read(config);
}

TEST(HfMoe, FilesNameEachExpert) {
  for (const bool qwen : {false, true}) {
    const ModelKeys keys = small(qwen);
    const ModelSpec spec = model_of(keys);
    const HfNames names = names_of(model_of(keys));
    ASSERT_TRUE(names.experts);
    const std::vector<LogicalTensor> natives = nn::logical_tensors(spec, DType::kF32);
    const auto tensors = file_tensors(natives, spec.blocks, HfLayout::kNative, names);
    EXPECT_EQ(int64_t(tensors.size()), num_file_tensors(spec, HfLayout::kNative, names));
    std::map<std::string, FileTensor> by_name;
    for (const FileTensor& tensor : tensors) by_name[tensor.name] = tensor;
    EXPECT_EQ(by_name.size(), tensors.size());
    const std::string mlp = qwen ? "model.layers.2.mlp." : "model.layers.2.block_sparse_moe.";
    EXPECT_EQ(by_name.at(mlp + "gate.weight").shape, (Shape{3, 8}));
    // Expert 1 of three: gate and up are parts 2 and 3 of six, down is part 1 of three.
    const char* const names_of_parts[2][3] = {{"w1", "w3", "w2"},
                                              {"gate_proj", "up_proj", "down_proj"}};
    for (const int part : {0, 1, 2}) {
      const FileTensor& t = by_name.at(mlp + "experts.1." + names_of_parts[qwen][part] + ".weight");
      EXPECT_EQ(t.shape, part == 2 ? (Shape{8, 5}) : (Shape{5, 8}));
      EXPECT_EQ(t.rows.at(0).part, part == 2 ? 1 : 2 + part);
      EXPECT_EQ(t.rows[0].num_parts, part == 2 ? 3 : 6);
      EXPECT_EQ(natives[t.rows[0].native].name, std::string("model.layers.2.mlp.experts.") +
                                                    (part == 2 ? "down_proj" : "gate_up_proj"));
    }
  }
}

using HfMoeDirectory = HfDirectoryTest;

TEST_F(HfMoeDirectory, ComesBackBitForBitWholeAndInShards) {
  for (const bool qwen : {false, true})
    for (const int64_t most : {int64_t{5'000'000'000}, int64_t{700}}) {
      const ModelKeys keys = small(qwen);
      const Values values = random_values(keys, DType::kF32);
      const std::string name = fmt::format("{}-{}", qwen, most);
      write(name, keys, values, {.dtype = DType::kF32, .max_file_bytes = most});
      const HfModel model = open(name);
      EXPECT_EQ(to_json(model.spec()), to_json(model_of(keys)));
      expect_equal(values, read_all(model, DType::kF32));
      // A part of the width of two experts, gate and up: cut at the borders of the files' tensors.
      const auto at = std::find_if(
          model.tensors().begin(), model.tensors().end(),
          [](const LogicalTensor& t) { return t.name.ends_with("experts.gate_up_proj"); });
      const LogicalTensor& stack = *at;
      const Box box{{1, 3, 2}, {2, 5, 4}};
      Values part;
      part.add(stack, box, DType::kF32);
      model.read(part.pieces[0]);
      const auto* whole = reinterpret_cast<const float*>(values.of(stack.name).data());
      for (int64_t e = 0, i = 0; e < 2; ++e)
        for (int64_t row = 0; row < 5; ++row)
          for (int64_t col = 0; col < 4; ++col, ++i)
            EXPECT_EQ(part.pieces[0].data.as<float>()[i],
                      whole[((1 + e) * 10 + 3 + row) * 8 + 2 + col]);
    }
}

// Files of transformers are written again tensor for tensor, by name and bit for bit.
TEST_F(HfMoeDirectory, WritesTheTensorsThatTransformersDoes) {
  for (const char* saved : {"hf_mixtral", "hf_qwen3_moe"}) {
    const HfModel model = HfModel::open(*files, test_data(saved));
    write(saved, model.spec(), read_all(model, DType::kF32), kF32Native);
    const auto wanted = take_apart(test_data(saved) + "/model.safetensors");
    EXPECT_GT(wanted.size(), 60u);
    EXPECT_TRUE(take_apart(root / (std::string(saved) + "/model.safetensors")) == wanted) << saved;
    // And of the config all that both state.
    const json theirs = json::parse(slurp(test_data(saved) + "/config.json"));
    const json ours = json::parse(slurp(root / (std::string(saved) + "/config.json")));
    for (const auto& [key, value] : theirs.items()) {
      if (key == "router_aux_loss_coef" || key == "transformers_version") continue;
      ASSERT_TRUE(ours.contains(key)) << saved << " " << key;
      if (key != "rope_parameters" && key != "mlp_only_layers") {
        EXPECT_EQ(ours[key], value) << saved << " " << key;
      }
    }
    EXPECT_EQ(ours["rope_parameters"]["rope_theta"], theirs["rope_parameters"]["rope_theta"]);
    if (theirs.contains("mlp_only_layers")) {
      EXPECT_EQ(ours["mlp_only_layers"], theirs["mlp_only_layers"]);
    }
  }
}

// As programs hold them, some files have the experts of a block in two tensors.
TEST_F(HfMoeDirectory, ReadsStackedExpertsToo) {
  const ModelKeys keys = small(true);
  const Values values = random_values(keys, DType::kF32);
  write("stacked", keys, values, kF32Native);
  rewrite(root / "stacked", [&](std::vector<RawTensor>& tensors) {
    std::vector<RawTensor> others;
    for (const RawTensor& tensor : tensors)
      if (tensor.spec.name.find(".mlp.experts.") == std::string::npos) others.push_back(tensor);
    for (const Piece& piece : values.pieces)
      if (piece.logical.name.find(".mlp.experts.") != std::string::npos) {
        const auto dims = piece.logical.global_shape.dims();
        others.push_back({{piece.logical.name, DType::kF32, {dims.begin(), dims.end()}},
                          text_of(values.of(piece.logical.name))});
      }
    tensors = others;
  });
  expect_equal(values, read_all(open("stacked"), DType::kF32));
}

TEST_F(HfMoeDirectory, SaysWhatDoesNotFit) {
  const ModelKeys keys = small(true);
  const Values values = random_values(keys, DType::kF32);
  const auto message = [&](const std::string& name, const char* key, const json& value) {
    write(name, keys, values, kF32Native);
    json config = json::parse(slurp(root / (name + "/config.json")));
    config[key] = value;
    if (key == std::string("num_local_experts")) config["num_experts"] = value;
    spill(root / (name + "/config.json"), config.dump());
    return message_of(ErrorKind::kData, [&] { open(name); });
  };
  EXPECT_NE(
      message("width", "moe_intermediate_size", 6)
          .find("moe_intermediate_size is 6 but tensor model.layers.1.mlp.experts.0.down_proj."
                "weight has shape [8, 5]; expected 6 in dim 1"),
      std::string::npos);
  EXPECT_NE(
      message("experts", "num_local_experts", 4)
          .find("num_experts is 4 but tensor model.layers.1.mlp.gate.weight has shape [3, 8]"),
      std::string::npos);
  EXPECT_NE(message("dense", "intermediate_size", 6)
                .find("intermediate_size is 6 but tensor model.layers.0.mlp.gate_proj.weight"),
            std::string::npos);
  write("lost", keys, values, kF32Native);
  rewrite(root / "lost", [](std::vector<RawTensor>& tensors) {
    std::erase_if(tensors, [](const RawTensor& tensor) {
      return tensor.spec.name == "model.layers.2.mlp.experts.1.up_proj.weight";
    });
  });
  EXPECT_NE(message_of(ErrorKind::kData, [&] { open("lost"); })
                .find("tensors are missing: model.layers.2.mlp.experts.1.up_proj.weight"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::models
