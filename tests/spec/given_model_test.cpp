// A recipe whose model is that of given weights, as far as the recipe states nothing.
#include <gtest/gtest.h>

#include "ashlar/spec/recipe.h"
#include "tests/support/errors.h"

namespace ashlar {
namespace {

using Overrides = std::vector<std::string>;

// A dense model in which no key has its default.
ModelKeys given_dense() {
  ModelKeys keys;
  keys.vocab_size = 120;
  keys.hidden_size = 48;
  keys.num_hidden_layers = 4;
  keys.num_attention_heads = 6;
  keys.num_key_value_heads = 3;
  keys.head_dim = 10;
  keys.intermediate_size = 72;
  keys.rms_norm_eps = 1e-6;
  keys.partial_rotary_factor = 1.0;
  keys.rope_theta = 5e5;
  keys.rope_theta_sliding = 3e4;
  keys.sliding_window = 17;
  keys.layer_types = {LayerType::kSlidingAttention, LayerType::kFullAttention,
                      LayerType::kSlidingAttention, LayerType::kFullAttention};
  keys.residual = Residual::kPlain;
  keys.qk_norm = QkNorm::kRms;
  keys.rope_scaling.type = RopeType::kLlama3;
  keys.rope_scaling.factor = 8.0;
  keys.rope_scaling.original_positions = 64;
  keys.tie_word_embeddings = false;
  keys.max_position_embeddings = 2048;
  keys.pad_token_id = -1;
  keys.bos_token_id = 11;
  keys.eos_token_ids = {12};
  return keys;
}

struct Found {
  Recipe recipe;
  int asked = 0;
};

Found parse_given(const std::string& toml, const Overrides& overrides = {},
                  const ModelKeys& given = given_dense(), bool config_json = true) {
  Found found;
  found.recipe = parse_recipe(toml, "run.toml", overrides, [&](const Recipe& recipe) {
    ++found.asked;
    EXPECT_EQ(recipe.init.model, "hf");
    EXPECT_EQ(recipe.train.run_dir, "here");
    return std::optional(GivenModel{model_of(given), "hf", config_json});
  });
  return found;
}

const std::string kTwo = "init.model = \"hf\"\ntrain.run_dir = \"here\"\n";

TEST(GivenModel, SaysEveryKeyThatTheRecipeDoesNot) {
  const Found found = parse_given(kTwo);
  EXPECT_EQ(found.asked, 1);
  EXPECT_EQ(found.recipe.model, given_dense());
  EXPECT_TRUE(model_differences(found.recipe, {model_of(given_dense()), "hf", true}).empty());
  // A saved model is whole: it needs nobody to be asked.
  const Recipe again = parse_recipe(to_toml(found.recipe), "run.toml", {});
  EXPECT_EQ(again, found.recipe);
}

TEST(GivenModel, NobodyIsAskedWithoutInitModel) {
  const auto never = [](const Recipe&) -> std::optional<GivenModel> {
    ADD_FAILURE();
    return std::nullopt;
  };
  const std::string message = testing_support::message_of(
      ErrorKind::kConfig, [&] { parse_recipe("train.steps = 3\n", "run.toml", {}, never); });
  EXPECT_EQ(message,
            "run.toml: model.vocab_size is missing; expected an integer from 2 to 2147483647, or "
            "init.model to take it from");
}

TEST(GivenModel, WhatTheRecipeStatesWinsWhereNoTensorDependsOnIt) {
  const struct {
    const char *key, *value, *was;
  } cases[] = {
      {"model.rope_theta", "10000.0", "500000.0"},
      {"model.rms_norm_eps", "0.01", "1e-06"},
      {"model.eos_token_id", "3", "12"},
      {"model.pad_token_id", "0", "-1"},
      {"model.sliding_window", "9", "17"},
      {"model.rope_factor", "4.0", "8.0"},
      {"model.max_position_embeddings", "777", "2048"},
      {"model.head_fp32", "true", ""},  // no config.json states it
      {"model.rope_theta", "500000.0", ""},
  };
  for (const auto& c : cases) {
    const Recipe recipe = parse_given(kTwo, {fmt::format("{}={}", c.key, c.value)}).recipe;
    std::vector<std::string> expected;
    if (*c.was)
      expected.push_back(fmt::format("{} is {} in the recipe but {} in hf", c.key, c.value, c.was));
    EXPECT_EQ(model_differences(recipe, {model_of(given_dense()), "hf", true}), expected) << c.key;
    EXPECT_NE(to_toml(recipe).find(fmt::format("\n{} = {}\n", c.key + 6, c.value)),
              std::string::npos);
  }
  // A step's model.json states the three that a config.json does not.
  const Recipe recipe = parse_given(kTwo, {"model.head_fp32=true"}, given_dense(), false).recipe;
  EXPECT_EQ(model_differences(recipe, {model_of(given_dense()), "step", false}).size(), 1u);
}

TEST(GivenModel, OtherTensorsAreRefusedByTheirKeys) {
  const struct {
    const char *key, *value, *was;
  } cases[] = {
      {"model.hidden_size", "64", "48"},     {"model.vocab_size", "121", "120"},
      {"model.num_hidden_layers", "2", "4"}, {"model.num_hidden_layers", "6", "4"},
      {"model.num_hidden_layers", "7", "4"}, {"model.num_attention_heads", "12", "6"},
      {"model.head_dim", "12", "10"},        {"model.intermediate_size", "70", "72"},
      {"model.qk_norm", "none", "\"rms\""},  {"model.tie_word_embeddings", "true", "false"},
  };
  for (const auto& c : cases) {
    const std::string message = testing_support::message_of(
        ErrorKind::kConfig, [&] { parse_given(kTwo, {fmt::format("{}={}", c.key, c.value)}); });
    const std::string value =
        c.key == std::string("model.qk_norm") ? fmt::format("\"{}\"", c.value) : c.value;
    EXPECT_EQ(message,
              fmt::format("run.toml: {} is {} but hf has {}; choose the sizes of init.model, or "
                          "leave them out, or other weights",
                          c.key, value, c.was));
  }
  EXPECT_NE(testing_support::message_of(
                ErrorKind::kConfig, [&] { parse_given(kTwo, {"model.layer_types=attention+moe"}); })
                .find("model.layer_types is \"attention+moe\" but hf has "),
            std::string::npos);
  // Windows are no tensors.
  EXPECT_EQ(parse_given(kTwo, {"model.layer_types=full_attention"}).recipe.model.layer_types,
            std::vector<LayerType>(4, LayerType::kFullAttention));
}

TEST(GivenModel, BlocksThatNoRecipeStatesAreNamed) {
  const auto find = [](const Recipe&) {
    ModelSpec model = model_of(given_dense());
    std::get<AttentionSpec>(model.blocks[2].mixer).num_query_heads = 9;
    return std::optional(GivenModel{model, "hf"});
  };
  EXPECT_EQ(testing_support::message_of(ErrorKind::kConfig,
                                        [&] { parse_recipe(kTwo, "run.toml", {}, find); }),
            "hf: block 2 differs from the others in what a recipe states once for all blocks: all "
            "but the kinds of mixer and feed-forward, one window and its RoPE base");
}

// The rules hold for what comes out, whoever said it.
TEST(GivenModel, RulesHoldForTheWhole) {
  EXPECT_EQ(testing_support::message_of(ErrorKind::kConfig,
                                        [&] { parse_given(kTwo, {"model.eos_token_id=120"}); }),
            "run.toml: model.eos_token_id is 120 but model.vocab_size is 120; choose 0 to 119, or "
            "-1 for none");
  EXPECT_NE(testing_support::message_of(ErrorKind::kConfig,
                                        [&] { parse_given(kTwo, {"data.sequence_length=4096"}); })
                .find("data.sequence_length is 4096 but model.max_position_embeddings is 2048"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar
