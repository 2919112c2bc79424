// config.json of dense models, as transformers 4 and 5 write it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/spec/recipe.h"
#include "tests/models/hf_config_cases.h"

namespace ashlar::models {
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
  const std::string path = std::string(ASHLAR_FIXTURES) + "/../../recipes/llama3-8b.toml";
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
  five["use_sliding_window"] = false;
  EXPECT_TRUE(refusal(five).starts_with("config.json: layer_types is [")) << refusal(five);
  json none = qwen3();
  none["use_sliding_window"] = false;
  EXPECT_EQ(read(none).layer_types, std::vector(4, full));
  none["use_sliding_window"] = true, none["sliding_window"] = nullptr;
  EXPECT_EQ(read(none).layer_types, std::vector(4, full));
  none.erase("sliding_window");  // then it is transformers' own
  EXPECT_EQ(read(none).sliding_window, 4096);
}

// As transformers 4.43 wrote that of Qwen2.5 0.5B Instruct.
json qwen2() {
  return json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})");
}

// As transformers 4.34 wrote that of Mistral 7B v0.1.
json mistral() {
  return json::parse(R"({
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0",
    "use_cache": true, "vocab_size": 32000})");
}

TEST(HfDense, Qwen2HasBiasesWithoutTheOutput) {
  const ModelKeys found = read(qwen2());
  EXPECT_EQ(found.attention_bias, AttentionBias::kQkv);
  EXPECT_EQ(found.head_dim, 64);
  EXPECT_EQ(found.qk_norm, QkNorm::kNone);
  EXPECT_EQ(found.layer_types, std::vector(24, LayerType::kFullAttention));
  json windows = qwen2();
  windows["use_sliding_window"] = true;
  EXPECT_EQ(read(windows).layer_types[20], LayerType::kFullAttention);
  EXPECT_EQ(read(windows).layer_types[21], LayerType::kSlidingAttention);
}

TEST(HfDense, MistralsWindowIsEveryBlocks) {
  const ModelKeys found = read(mistral());
  EXPECT_EQ(found.sliding_window, 4096);
  EXPECT_EQ(found.layer_types, std::vector(32, LayerType::kSlidingAttention));
  json silent = mistral();
  silent.erase("sliding_window");
  EXPECT_EQ(read(silent), found);
  json none = mistral();
  none["sliding_window"] = nullptr;
  EXPECT_EQ(read(none).layer_types, std::vector(32, LayerType::kFullAttention));
  // Without a window it is a Llama, and is written as one.
  EXPECT_EQ(json::parse(to_hf_config(read(none), DType::kF32, HfLayout::kNative))["model_type"],
            "llama");
}

TEST(HfDense, BiasesOfAllProjectionsAreStated) {
  for (json config : {llama31(), qwen3()}) {
    config["attention_bias"] = true;
    const ModelKeys keys = read(config);
    EXPECT_EQ(keys.attention_bias, AttentionBias::kQkvo);
    const json written = json::parse(to_hf_config(keys, DType::kF32, HfLayout::kNative));
    EXPECT_EQ(written["attention_bias"], true);
    EXPECT_EQ(model_of(read(written)), model_of(keys));
  }
  ModelKeys keys = read(llama31());
  keys.attention_bias = AttentionBias::kQkv;
  EXPECT_EQ(json::parse(to_hf_config(keys, DType::kF32, HfLayout::kNative))["model_type"], "qwen2");
  keys.qk_norm = QkNorm::kRms;
  EXPECT_FALSE(has_hf_config(keys));
}

TEST(HfDense, WhatItWritesReadsBackTheSame) {
  for (const json& config : {llama31(), qwen3(), qwen2(), mistral()}) {
    const ModelKeys keys = read(config);
    ASSERT_TRUE(has_hf_config(keys));
    const json written = json::parse(to_hf_config(keys, DType::kBF16, HfLayout::kNative));
    EXPECT_EQ(read(written), keys) << written.dump(2);
    EXPECT_TRUE(parse_hf_config(written.dump(), "written").not_followed.empty());
    EXPECT_EQ(written["architectures"], config["architectures"]);
    EXPECT_EQ(written["model_type"], config["model_type"]);
    EXPECT_EQ(written["dtype"], "bfloat16");
    // Each version of transformers reads its own keys of these.
    EXPECT_EQ(written["rope_theta"], config["rope_theta"]);
    EXPECT_EQ(written["rope_parameters"]["rope_theta"], config["rope_theta"]);
    EXPECT_EQ(written["rope_scaling"], config.value("rope_scaling", json()));
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
  keys.layer_types[3] = LayerType::kSlidingAttention, keys.sliding_window = 9;
  EXPECT_FALSE(has_hf_config(keys));  // Llama has no windows, and Mistral one in every block
  keys.qk_norm = QkNorm::kRms, keys.rope_theta_sliding = 1.0;
  EXPECT_FALSE(has_hf_config(keys));  // Qwen3 has one RoPE base
  keys.rope_theta_sliding = keys.rope_theta;
  EXPECT_TRUE(has_hf_config(keys));
  EXPECT_THROW(to_hf_config(keys, DType::kF32, HfLayout::kLegacy), Error);
}

TEST(HfDense, RefusesOtherArithmeticByItsKey) {
  const std::pair<const char*, json> others[] = {
      {"attention_bias", 1},
      {"attention_bias", nullptr},
      {"mlp_bias", true},
      {"mlp_bias", nullptr},
      {"tie_word_embeddings", 0},
      {"tie_word_embeddings", "false"},
      {"tie_word_embeddings", nullptr},
      {"hidden_act", "gelu"},
      {"hidden_act", nullptr},
      {"rms_norm_eps", nullptr},
      {"max_position_embeddings", nullptr},
      {"partial_rotary_factor", 0.5},  // with scaled RoPE
      {"quantization_config", {{"bits", 4}}},
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
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
  json config = llama31();
  config["hidden_size"] = 4097;
  EXPECT_EQ(refusal(config),
            "config.json: hidden_size is 4097; expected a multiple of num_attention_heads, 32, or "
            "head_dim beside them");
  config = qwen3();
  config.erase("head_dim");  // then it is the family's, whatever the width
  EXPECT_EQ(read(config).head_dim, 128);
}

}  // namespace
}  // namespace ashlar::models
