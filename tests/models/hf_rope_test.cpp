// RoPE as config.json states it, in all the ways in which files do.
#include <gtest/gtest.h>

#include "ashlar/core/json.h"
#include "tests/models/hf_config_cases.h"

namespace ashlar::models {
namespace {

using nlohmann::json;

// A Llama without a word on RoPE.
json plain() {
  return json::parse(R"({
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-05})");
}

json with(json rope) {
  json config = plain();
  config["rope_parameters"] = std::move(rope);
  return config;
}

// A table of what a file says, and the model that it means.
struct Meaning {
  const char* file;  // members beside those of plain()
  ModelKeys keys;    // of which only those of RoPE count
};

ModelKeys meant(RopeType type, double theta, double factor = 1.0, int64_t original = 0) {
  ModelKeys keys;
  keys.rope_scaling.type = type, keys.rope_theta = keys.rope_theta_sliding = theta;
  keys.rope_scaling.factor = factor, keys.rope_scaling.original_positions = original;
  return keys;
}
ModelKeys yarn(double factor, int64_t original, double attention = 0.0, bool truncate = true,
               double fast = 32.0, double slow = 1.0) {
  ModelKeys keys = meant(RopeType::kYarn, 1e4, factor, original);
  keys.rope_scaling.attention_factor = attention, keys.rope_scaling.truncate = truncate;
  keys.rope_scaling.beta_fast = fast, keys.rope_scaling.beta_slow = slow;
  return keys;
}

const Meaning kMeanings[] = {
    {R"({})", meant(RopeType::kDefault, 1e4)},
    {R"({"rope_theta": 5e5})", meant(RopeType::kDefault, 5e5)},
    {R"({"rope_theta": 5e5, "rope_parameters": null})", meant(RopeType::kDefault, 5e5)},
    {R"({"rope_theta": 5e5, "rope_parameters": {}, "rope_scaling": {}})",
     meant(RopeType::kDefault, 5e5)},
    {R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 2e5}})",
     meant(RopeType::kDefault, 2e5)},
    {R"({"rope_scaling": {"rope_type": "default", "factor": 4.0}})",
     meant(RopeType::kDefault, 1e4)},
    {R"({"rope_scaling": {"factor": 4.0}})", meant(RopeType::kDefault, 1e4)},
    {R"({"rope_scaling": {"type": "linear", "factor": 4}})", meant(RopeType::kLinear, 1e4, 4)},
    {R"({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 1.0}})",
     meant(RopeType::kLinear, 1e4)},
    {R"({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 3e4}})",
     meant(RopeType::kDynamic, 3e4, 2, 512)},
    {R"({"rope_scaling": {"type": "dynamic", "factor": 2.0,
                          "original_max_position_embeddings": 64}})",
     meant(RopeType::kDynamic, 1e4, 2, 512)},
    {R"({"rope_scaling": {"type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 128}})",
     yarn(4, 128)},
    {R"({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}})", yarn(4, 512)},
    {R"({"rope_parameters": {"rope_type": "yarn", "factor": null,
                             "original_max_position_embeddings": 128}})",
     yarn(4, 128)},
    {R"({"original_max_position_embeddings": 256,
         "rope_scaling": {"type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 128}})",
     yarn(4, 256)},
    {R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 0.7, "beta_fast": 16,
                          "beta_slow": 2, "truncate": false}})",
     yarn(4, 512, 0.7, false, 16, 2)},
    {R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": null,
                          "beta_fast": null, "beta_slow": null, "mscale": null}})",
     yarn(4, 512)},
    // One of the two alone says nothing; both say (0.1 m ln 4 + 1) / (0.1 M ln 4 + 1).
    {R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7}})", yarn(4, 512)},
    {R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0}})",
     yarn(4, 512, 1.2772588722239782 / 1.1386294361119891)},
};

TEST(HfRope, EveryWayToSayIt) {
  for (const Meaning& meaning : kMeanings) {
    json config = plain();
    config.update(json::parse(meaning.file));
    ModelKeys found = read(config), want = meaning.keys;
    EXPECT_NEAR(found.rope_scaling.attention_factor, want.rope_scaling.attention_factor, 1e-15)
        << meaning.file;
    found.rope_scaling.attention_factor = want.rope_scaling.attention_factor;
    ModelKeys all = read(plain());
    all.rope_scaling.type = want.rope_scaling.type, all.rope_theta = want.rope_theta;
    all.rope_theta_sliding = want.rope_theta_sliding;
    all.rope_scaling.factor = want.rope_scaling.factor;
    all.rope_scaling.original_positions = want.rope_scaling.original_positions;
    all.rope_scaling.attention_factor = want.rope_scaling.attention_factor;
    all.rope_scaling.truncate = want.rope_scaling.truncate;
    all.rope_scaling.beta_fast = want.rope_scaling.beta_fast,
    all.rope_scaling.beta_slow = want.rope_scaling.beta_slow;
    EXPECT_TRUE(model_of(found) == model_of(all)) << meaning.file;
    // Written it says the same, to each version of transformers.
    const json written = json::parse(to_hf_config(found, DType::kF32, HfLayout::kNative));
    for (const char* other : {"rope_scaling", "rope_parameters", ""}) {
      json back = written;
      back.erase(other);
      const HfConfig again = parse_hf_config(back.dump(), "written");
      EXPECT_TRUE(again.model == model_of(found)) << back.dump(1);
      EXPECT_TRUE(again.not_followed.empty()) << back.dump(1);
    }
  }
}

// Llama 3's, whose original positions stand inside, beside, or nowhere.
TEST(HfRope, OriginalPositionsOfLlama3) {
  const json rope = {
      {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  json config = with(rope);
  EXPECT_EQ(read(config).rope_scaling.original_positions, 512);
  config["rope_parameters"]["original_max_position_embeddings"] = 64;
  EXPECT_EQ(read(config).rope_scaling.original_positions, 64);
  config["original_max_position_embeddings"] = 32;
  EXPECT_EQ(read(config).rope_scaling.original_positions, 32);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    json missing = rope;
    missing.erase(key);
    EXPECT_EQ(refusal(with(missing)), std::string("config.json: rope_parameters: ") + key +
                                          " is missing; expected a number above 0");
  }
}

TEST(HfRope, OthersAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]})",
       "rope_type is \"longrope\"; expected one of \"default\", \"linear\", \"dynamic\", \"yarn\", "
       "\"llama3\""},
      {R"({"rope_type": "proportional"})", "rope_type is \"proportional\"; expected one of"},
      {R"({"type": "mrope", "mrope_section": [1, 1, 2]})",
       "mrope_section is [1,1,2]; expected none"},
      {R"({"type": "mrope"})", "type is \"mrope\"; expected one of"},
      {R"({"rope_type": null, "factor": null})", "rope_type is null; expected one of"},
      {R"({"type": null})", "type is null; expected one of"},
      {R"({"type": "linear", "rope_type": "yarn", "factor": 2.0})",
       "type is \"linear\"; expected rope_type, which is \"yarn\""},
      {R"({"type": "linear"})", "factor is missing; expected a number above 0"},
      {R"({"type": "linear", "factor": "4"})", "factor is \"4\"; expected a number above 0"},
      {R"({"type": "yarn"})", "factor is missing; expected a number above 0"},
      {R"({"type": "yarn", "factor": 4, "attention_factor": 0})",
       "attention_factor is 0; expected"},
      {R"({"type": "yarn", "factor": 4, "truncate": 1})", "truncate is 1; expected true or false"},
      {R"({"rope_theta": "500000.0"})", "rope_theta is \"500000.0\"; expected a number above 0"},
      {R"({"type": "linear", "factor": 2, "partial_rotary_factor": 0.5})",
       "partial_rotary_factor is 0.5; expected 1.0: scaled RoPE"},
  };
  for (const auto& [rope, words] : cases) {
    const std::string message = refusal(with(json::parse(rope)));
    EXPECT_TRUE(message.starts_with(std::string("config.json: rope_parameters: ") + words))
        << message;
  }
  json config = plain();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 0.5}};
  EXPECT_NE(refusal(config).find("rope_factor is 0.5"), std::string::npos) << refusal(config);
  config["rope_scaling"]["factor"] = 2.0;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 777.0}};
  EXPECT_NE(refusal(config).find("rope_parameters is {"), std::string::npos) << refusal(config);
  config["rope_theta"] = nullptr;
  config.erase("rope_parameters");
  EXPECT_EQ(refusal(config),
            "config.json: rope_theta is null; expected a number above 0, or no such key");
}

// Members that transformers ignores are named.
TEST(HfRope, KeysThatSayNothingAreNotFollowed) {
  const auto not_followed = [](const json& config) {
    return parse_hf_config(config.dump(), "config.json").not_followed;
  };
  json config = plain();
  config["partial_rotary_factor"] = 0.5, config["rotary_base"] = 5e5;
  EXPECT_EQ(not_followed(config),
            (std::vector<std::string>{"partial_rotary_factor", "rotary_base"}));
  EXPECT_EQ(read(config).rope_theta, 1e4);
  EXPECT_EQ(read(config).partial_rotary_factor, 1.0);
  config = with({{"rope_type", "default"}, {"factor", 4.0}, {"rope_theta", 2e4}});
  EXPECT_EQ(not_followed(config), std::vector<std::string>{"rope_parameters.factor"});
  config = with({{"rope_type", "default"}, {"partial_rotary_factor", 1.0}});
  EXPECT_TRUE(not_followed(config).empty());
}

TEST(HfRope, DynamicIsWrittenWithOneNumberOfPositions) {
  ModelKeys keys = read(with({{"rope_type", "dynamic"}, {"factor", 2.0}}));
  keys.max_position_embeddings = 1024;
  EXPECT_NE(testing_support::message_of(ErrorKind::kConfig,
                                        [&] { to_hf_config(keys, DType::kF32, HfLayout::kNative); })
                .find("model.rope_original_positions is 512 but model.max_position_embeddings is "
                      "1024"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::models
