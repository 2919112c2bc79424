// config.json in its three published forms, read and written.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "tests/models/hf_config_cases.h"

namespace ashlar::models {
namespace {

std::string fixture(const std::string& name) {
  const auto files = posix_files();
  return read_text(*files, std::string(ASHLAR_FIXTURES) + "/hf_configs/" + name + ".json");
}

HfConfig parse_fixture(const std::string& name) {
  return parse_hf_config(fixture(name), name);
}

// The published shapes, written out.
ModelKeys shapes_8b() {
  ModelKeys m;
  m.vocab_size = 262272, m.hidden_size = 2048, m.num_hidden_layers = 40;
  m.num_attention_heads = 8, m.num_key_value_heads = 2, m.head_dim = 128;
  m.num_experts = 16, m.moe_intermediate_size = 2048, m.router_hidden_size = 256;
  m.rope_theta = 5e6, m.rope_theta_sliding = 1e4, m.partial_rotary_factor = 0.5;
  m.max_position_embeddings = 131072, m.eos_token_ids = {106};
  m.layer_types.assign(40, LayerType::kHybrid);
  return m;
}

ModelKeys shapes_base() {
  ModelKeys m = shapes_8b();
  m.rope_theta = 1e6, m.max_position_embeddings = 32768, m.eos_token_ids = {1};
  return m;
}

ModelKeys shapes_74b() {
  ModelKeys m = shapes_8b();
  m.hidden_size = 4096, m.num_hidden_layers = 60, m.num_attention_heads = 16;
  m.num_experts = 24, m.moe_intermediate_size = 4096, m.sliding_window = 4097;
  m.max_position_embeddings = 262144, m.eos_token_ids = {1};
  m.layer_types.clear();
  for (int block = 0; block < 60; ++block)
    m.layer_types.push_back(block % 2 == 0 ? LayerType::kHybridSliding : LayerType::kHybrid);
  return m;
}

TEST(HfConfig, EveryPublishedFormGivesItsModel) {
  const struct {
    const char* file;
    HfForm form;
    ModelKeys model;
  } cases[] = {
      {"base_legacy2025", HfForm::kLegacy2025, shapes_base()},
      {"smoe_legacy2025", HfForm::kLegacy2025, shapes_base()},
      {"zaya1_8b_legacy2026", HfForm::kLegacy2026, shapes_8b()},
      {"zaya1_8b_native", HfForm::kNative, shapes_8b()},
      {"zaya1_74b_legacy2026", HfForm::kLegacy2026, shapes_74b()},
      {"zaya1_74b_native", HfForm::kNative, shapes_74b()},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.file);
    const HfConfig config = parse_fixture(c.file);
    EXPECT_EQ(name_of(config.form), name_of(c.form));
    EXPECT_TRUE(config.model == model_of(c.model))
        << to_hf_config(config.model, DType::kBF16, HfLayout::kNative);
  }
}

TEST(HfConfig, RemembersWhichKeyStatedASize) {
  EXPECT_EQ(parse_fixture("base_legacy2025").key_of("num_hidden_layers"), "zaya_layers");
  EXPECT_EQ(parse_fixture("smoe_legacy2025").key_of("num_hidden_layers"), "smoe_layers");
  EXPECT_EQ(parse_fixture("zaya1_8b_legacy2026").key_of("moe_intermediate_size"),
            "ffn_hidden_size");
  EXPECT_EQ(parse_fixture("zaya1_8b_native").key_of("num_experts"), "num_experts");
}

TEST(HfConfig, WritesWhatItReads) {
  for (const ModelKeys& model : {shapes_8b(), shapes_base(), shapes_74b()})
    for (const HfLayout layout : {HfLayout::kNative, HfLayout::kLegacy}) {
      const HfConfig back = parse_hf_config(to_hf_config(model, DType::kBF16, layout), "written");
      EXPECT_TRUE(back.model == model_of(model));
      EXPECT_EQ(back.form, layout == HfLayout::kNative ? HfForm::kNative : HfForm::kLegacy2026);
    }
}

TEST(HfConfig, NoTokenIsNull) {
  ModelKeys model = shapes_8b();
  model.pad_token_id = -1;
  const std::string text = to_hf_config(model, DType::kBF16, HfLayout::kNative);
  EXPECT_TRUE(Json::parse(text)["pad_token_id"].is_null());
  EXPECT_EQ(parse_hf_config(text, "written").model.pad_token_id, -1);
}

// The keys that transformers itself wrote for a sliding model, but for its own version and cache.
TEST(HfConfig, NativeFormHasTheKeysAndValuesThatTransformersWrites) {
  const auto files = posix_files();
  const std::string path = std::string(ASHLAR_FIXTURES) + "/hf_small/config.json";
  Json theirs = Json::parse(read_text(*files, path));
  const ModelKeys model = read(theirs);
  EXPECT_EQ(model.sliding_window, 6);
  EXPECT_EQ(model.rope_theta, 50000.0);
  EXPECT_EQ(model.rope_theta_sliding, 1000.0);
  EXPECT_EQ(model.layer_types[0], LayerType::kHybridSliding);
  theirs.erase("transformers_version");
  theirs.erase("use_cache");
  EXPECT_EQ(Json::parse(to_hf_config(model, DType::kF32, HfLayout::kNative)), theirs);
}

TEST(HfConfig, RopeParametersHoldOnlyTheLayerTypesInUse) {
  const Json full = Json::parse(to_hf_config(shapes_8b(), DType::kBF16, HfLayout::kNative));
  EXPECT_EQ(full["rope_parameters"].size(), 1u);
  EXPECT_TRUE(full["rope_parameters"].contains("hybrid"));
  EXPECT_TRUE(full["sliding_window"].is_null());
  EXPECT_EQ(full["dtype"], "bfloat16");
  ModelKeys all_sliding = shapes_74b();
  all_sliding.layer_types.assign(60, LayerType::kHybridSliding);
  const Json sliding = Json::parse(to_hf_config(all_sliding, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(sliding["rope_parameters"].size(), 1u);
  EXPECT_TRUE(sliding["rope_parameters"].contains("hybrid_sliding"));
  EXPECT_EQ(sliding["sliding_window"], 4097);
  EXPECT_EQ(sliding["dtype"], "float32");
}

TEST(HfConfig, LegacyFormCountsSubLayersAndFusesGateAndUp) {
  const Json json = Json::parse(to_hf_config(shapes_74b(), DType::kBF16, HfLayout::kLegacy));
  EXPECT_EQ(json["num_hidden_layers"], 120);
  EXPECT_EQ(json["ffn_hidden_size"], 8192);
  ASSERT_EQ(json["swa_layers"].size(), 120u);
  for (int sub = 0; sub < 120; ++sub) EXPECT_EQ(json["swa_layers"][sub], sub % 4 == 0 ? 4096 : 0);
  EXPECT_FALSE(json.contains("layer_types"));
}

TEST(HfConfig, AWindowOfOneHasNoLegacyForm) {
  ModelKeys model = shapes_74b();
  model.sliding_window = 1;  // zero previous tokens, which the legacy form reads as no window
  try {
    to_hf_config(model, DType::kBF16, HfLayout::kLegacy);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
  }
}

TEST(HfConfig, GenerationConfigNamesTheTokens) {
  const Json json = Json::parse(to_hf_generation_config(model_of(shapes_8b())));
  EXPECT_EQ(json["pad_token_id"], 0);
  EXPECT_EQ(json["bos_token_id"], 2);
  EXPECT_EQ(json["eos_token_id"], 106);
}

// One change to a good config, and what the message must name.
struct Bad {
  const char* file;
  const char* key;
  Json value;
  std::vector<std::string> named;
};

TEST(HfConfig, ChangedFieldsAreRejectedByName) {
  const Bad cases[] = {
      {"base_legacy2025", "zaya_use_mod", false, {"zaya_use_mod is false", "expected true"}},
      {"base_legacy2025", "zaya_use_eda", false, {"zaya_use_eda is false", "expected true"}},
      {"smoe_legacy2025", "smoe_use_eda", false, {"smoe_use_eda is false", "expected true"}},
      {"base_legacy2025", "zaya_high_prec", false, {"zaya_high_prec is false", "expected true"}},
      {"base_legacy2025", "scale_residual_merge", false, {"scale_residual_merge", "expected true"}},
      {"base_legacy2025", "gated_linear_unit", false, {"gated_linear_unit", "expected true"}},
      {"base_legacy2025", "cca", false, {"cca is false", "expected true"}},
      {"base_legacy2025", "tie_word_embeddings", false, {"tie_word_embeddings", "expected true"}},
      {"base_legacy2025", "activation_func", "gelu", {"activation_func is \"gelu\"", "swiglu"}},
      {"base_legacy2025", "add_bias_linear", true, {"add_bias_linear is true", "expected false"}},
      {"base_legacy2025", "attention_bias", true, {"attention_bias is true", "expected false"}},
      {"base_legacy2025", "lm_head_bias", true, {"lm_head_bias is true", "expected false"}},
      {"base_legacy2025", "clamp_temp", true, {"clamp_temp is true", "expected false"}},
      {"base_legacy2025", "moe_router_topk", 2, {"moe_router_topk is 2", "expected 1"}},
      {"base_legacy2025",
       "rope_scaling",
       {{"type", "linear"}},
       {"rope_scaling is {", "null", "supported are"}},
      {"base_legacy2025", "cca_num_q_heads", "eight", {"cca_num_q_heads is \"eight\"", "integer"}},
      {"base_legacy2025", "sliding_window", 4096, {"sliding_window is 4096", "swa_layers"}},
      {"base_legacy2025",
       "rotary_base",
       1e4,
       {"rope_theta is 1000000.0", "rotary_base is 10000.0"}},
      {"zaya1_8b_legacy2026", "attention_dropout", 0.1, {"attention_dropout is 0.1", "expected 0"}},
      {"zaya1_8b_legacy2026", "ffn_hidden_size", 4095, {"ffn_hidden_size is 4095", "even"}},
      {"zaya1_8b_legacy2026", "num_hidden_layers", 81, {"num_hidden_layers states 81", "even"}},
      {"zaya1_8b_legacy2026", "swa_layers", {1, 2}, {"swa_layers is [1,2]", "80 integers"}},
      {"zaya1_8b_native", "num_experts_per_tok", 2, {"num_experts_per_tok is 2", "expected 1"}},
      {"zaya1_8b_native", "hidden_act", "gelu", {"hidden_act is \"gelu\"", "silu"}},
      {"zaya1_8b_native", "num_attention_heads", 7, {"num_attention_heads is 7", "multiple of 2"}},
      {"zaya1_8b_native", "cca_time1", 4, {"cca_time1 is 4", "expected 2"}},
      {"zaya1_8b_native", "rms_norm_eps", 0, {"rms_norm_eps is 0", "above 0"}},
      {"zaya1_8b_native",
       "rope_parameters",
       {{"rope_theta", 1e6}},
       {"rope_parameters", "\"hybrid\""}},
      {"zaya1_8b_native", "vocab_size", 1e300, {"vocab_size is 1e+300", "integer"}},
      {"zaya1_8b_native", "eos_token_id", "</s>", {"eos_token_id is \"</s>\"", "id of a token"}},
      {"zaya1_8b_native", "eos_token_id", {1, 2.5}, {"eos_token_id is [1,2.5]", "a list"}},
      {"zaya1_8b_native", "bos_token_id", {1}, {"bos_token_id is [1]", "id of a token"}},
      {"zaya1_8b_native", "pad_token_id", 262272, {"pad_token_id is 262272", "vocab_size"}},
      {"zaya1_74b_native", "sliding_window", nullptr, {"sliding_window is missing", "integer"}},
      {"zaya1_74b_native", "num_hidden_layers", 59, {"layer_types", "num_hidden_layers = 59"}},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(fmt::format("{}: {} = {}", bad.file, bad.key, bad.value.dump()));
    Json json = Json::parse(fixture(bad.file));
    json[bad.key] = bad.value;
    try {
      parse_hf_config(json.dump(), "DIR/config.json");
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kData) << message;
      EXPECT_TRUE(message.starts_with("DIR/config.json: ")) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      for (const std::string& word : bad.named)
        EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }
}

// generate() of transformers 5.24 stops at these ids of such a config.json, and at no other.
TEST(HfConfig, AllStopTokensAreRead) {
  const struct {
    Json stated;
    std::vector<int64_t> read;
    size_t notes;
    Json written;
  } cases[] = {
      {106, {106}, 0, 106},
      {{106, 1}, {106, 1}, 0, {106, 1}},
      {{1, 106, 1}, {1, 106}, 0, {1, 106}},
      {nullptr, {}, 0, nullptr},
      {Json::array(), {}, 0, nullptr},
      {-1, {}, 0, nullptr},
      {262272, {}, 1, nullptr},
      {{2, 262272}, {2}, 1, 2},
      {{262272, -1, 7, 262273}, {7}, 2, 7},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.stated.dump());
    Json json = Json::parse(fixture("zaya1_8b_native"));
    json["eos_token_id"] = each.stated;
    const HfConfig config = parse_hf_config(json.dump(), "DIR/config.json");
    EXPECT_EQ(config.model.eos_token_ids, each.read);
    EXPECT_EQ(config.notes.size(), each.notes);
    for (const std::string& note : config.notes)
      EXPECT_NE(note.find("DIR/config.json: eos_token_id 26227"), std::string::npos) << note;
    const auto written = Json::parse(to_hf_config(config.model, DType::kBF16, HfLayout::kNative));
    EXPECT_EQ(written["eos_token_id"], each.written);
    EXPECT_EQ(Json::parse(to_hf_generation_config(config.model))["eos_token_id"], each.written);
  }
}

TEST(HfConfig, SilentFieldsTakeWhatTheReleasedCodeAssumes) {
  Json json = Json::parse(fixture("zaya1_8b_native"));
  for (const char* key :
       {"rope_parameters", "rms_norm_eps", "layer_types", "max_position_embeddings", "pad_token_id",
        "bos_token_id", "eos_token_id", "cca_time0"})
    json.erase(key);
  EXPECT_TRUE(parse_hf_config(json.dump(), "x").model == model_of(shapes_8b()));
  json["rope_theta"] = 1e4;  // beside no rope_parameters it is the base of every block
  EXPECT_EQ(read(json).rope_theta, 1e4);
}

// Rules of the legacy forms on where a size comes from.
TEST(HfConfig, LegacySizesHaveFallbacks) {
  Json json = Json::parse(fixture("base_legacy2025"));
  json.erase("kv_channels");  // then hidden_size / num_attention_heads, 2048 / 16
  json.erase("num_query_groups_list");
  json["intermediate_size"] = json["ffn_hidden_size_list"][1];
  json.erase("ffn_hidden_size_list");
  EXPECT_TRUE(parse_hf_config(json.dump(), "x").model == model_of(shapes_base()));
  Json scalar = Json::parse(fixture("zaya1_8b_legacy2026"));
  scalar["num_moe_experts"] = scalar["num_experts"];
  scalar.erase("num_experts");
  scalar["kv_channels"] = scalar["head_dim"];
  scalar.erase("head_dim");
  scalar.erase("num_query_groups");
  EXPECT_TRUE(parse_hf_config(scalar.dump(), "x").model == model_of(shapes_8b()));
}

}  // namespace
}  // namespace ashlar::models
