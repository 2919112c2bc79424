// config.json of dense models, as transformers 4 and 5 write it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/spec/recipe.h"
#include "hf_config_cases.h"

namespace ashlar::checkpoint {
namespace {

using nlohmann::json;

// As transformers 4.x wrote that of Llama 3.1 8B.
json llama31() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})");
}

json qwen3() {
  return json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 2, "eos_token_id": 1, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 16,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
    "tie_word_embeddings": true, "use_sliding_window": true, "vocab_size": 151936})");
}

TEST(HfDense, ReadsLlama31AsTheRecipeStatesIt) {
  const ModelKeys found = read(llama31());
  const std::string path = std::string(ASHLAR_TEST_DATA) + "/../../recipes/llama3-8b.toml";
  EXPECT_EQ(to_json(model_of(found)), to_json(model_of(load_recipe(path, {}).model)));
  EXPECT_EQ(found.head_dim, 128);  // hidden_size / num_attention_heads
}

// transformers 5 has the same in rope_parameters.
TEST(HfDense, ReadsBothFormsOfRope) {
  json five = llama31();
  five["rope_parameters"] = five["rope_scaling"];
  five["rope_parameters"]["rope_theta"] = five["rope_theta"];
  five.erase("rope_scaling"), five.erase("rope_theta");
  EXPECT_EQ(read(five), read(llama31()));
  json old = llama31();
  old["rope_scaling"]["type"] = "llama3";
  old["rope_scaling"].erase("rope_type");
  EXPECT_EQ(read(old), read(llama31()));
}

TEST(HfDense, ReadsQwen3WithWindowsFromEitherKey) {
  const ModelKeys found = read(qwen3());
  EXPECT_EQ(found.qk_norm, QkNorm::kRms);
  EXPECT_EQ(found.sliding_window, 512);
  const LayerType full = LayerType::kFullAttention, sliding = LayerType::kSlidingAttention;
  EXPECT_EQ(found.layer_types, (std::vector{full, full, sliding, sliding}));
  json five = qwen3();
  five["layer_types"] = {"full_attention", "full_attention", "sliding_attention",
                         "sliding_attention"};
  EXPECT_EQ(read(five), found);
  five["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(read(five).layer_types, (std::vector{sliding, full, full, full}));
  json none = qwen3();
  none["use_sliding_window"] = false, none["sliding_window"] = nullptr;
  EXPECT_EQ(read(none).layer_types, std::vector(4, full));
}

TEST(HfDense, WhatItWritesReadsBackTheSame) {
  for (const json& config : {llama31(), qwen3()}) {
    const ModelKeys keys = read(config);
    ASSERT_TRUE(has_hf_config(keys));
    const json written = json::parse(to_hf_config(keys, DType::kBF16, HfLayout::kNative));
    EXPECT_EQ(read(written), keys) << written.dump(2);
    EXPECT_EQ(written["architectures"], config["architectures"]);
    EXPECT_EQ(written["model_type"], config["model_type"]);
    EXPECT_EQ(written["dtype"], "bfloat16");
    // Each version of transformers reads its own keys of these.
    EXPECT_EQ(written["rope_theta"], config["rope_theta"]);
    EXPECT_EQ(written["rope_parameters"]["rope_theta"], config["rope_theta"]);
    EXPECT_EQ(written["rope_scaling"], config["rope_scaling"]);
  }
}

TEST(HfDense, NoFamilyStatesWhatNoneHas) {
  ModelKeys keys = read(llama31());
  keys.partial_rotary_factor = 0.5;
  EXPECT_FALSE(has_hf_config(keys));
  keys = read(llama31());
  keys.layer_types[3] = {CcaSpec::kKind, MlpSpec::kKind};
  EXPECT_FALSE(has_hf_config(keys));
  EXPECT_THROW(to_hf_config(keys, DType::kF32, HfLayout::kNative), Error);
  keys = read(llama31());
  keys.layer_types.assign(32, LayerType::kSlidingAttention), keys.sliding_window = 9;
  EXPECT_FALSE(has_hf_config(keys));  // Llama has no windows
  keys.qk_norm = QkNorm::kRms, keys.rope_theta_sliding = 1.0;
  EXPECT_FALSE(has_hf_config(keys));  // Qwen3 has one RoPE base
  keys.rope_theta_sliding = keys.rope_theta;
  EXPECT_TRUE(has_hf_config(keys));
  EXPECT_THROW(to_hf_config(keys, DType::kF32, HfLayout::kLegacy), Error);
}

TEST(HfDense, RefusesOtherArithmeticByItsKey) {
  const std::pair<const char*, json> others[] = {
      {"attention_bias", true},
      {"mlp_bias", true},
      {"hidden_act", "gelu"},
      {"attention_dropout", 0.1},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"bits", 4}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_scaling", 2},
      {"num_attention_heads", 0},
      {"num_key_value_heads", 7},
      {"intermediate_size", "wide"},
  };
  for (const auto& [key, value] : others) {
    json config = llama31();
    config[key] = value;
    const std::string message = refusal(config);
    EXPECT_TRUE(message.starts_with("config.json: ")) << message;
    EXPECT_NE(
        message.find(std::string(key) == "rope_scaling" && value.is_object() ? "rope_type" : key),
        std::string::npos)
        << message;
  }
  json config = llama31();
  config["hidden_size"] = 4097;
  EXPECT_EQ(refusal(config),
            "config.json: hidden_size is 4097; expected a multiple of num_attention_heads, 32, or "
            "head_dim beside them");
  config = qwen3();
  config["sliding_window"] = nullptr;
  EXPECT_EQ(refusal(config),
            "config.json: sliding_window is missing; expected an integer from 1 to 2147483647");
}

}  // namespace
}  // namespace ashlar::checkpoint
