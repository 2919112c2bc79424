// Contents of generation_config.json, as GenerationConfig of transformers 5.24 reads it.
#include "ashlar/eval/generation_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using nlohmann::json;
using testing_support::message_of;

models::ModelSource source() {
  models::ModelSource source;
  source.resolved = "m";
  source.hugging_face = true;
  source.spec.vocab_size = 100;
  source.spec.eos_token_ids = {2, 5};
  return source;
}

GenerationConfig read(const json& file) {
  return read_generation_config({.files = {{"generation_config.json", file.dump()}}}, source());
}

TEST(GenerationConfig, WithoutAFileConfigJsonSaysWhatStops) {
  const GenerationConfig config = read_generation_config({}, source());
  EXPECT_EQ(config.path, "");
  EXPECT_EQ(config.stop_ids, (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(config.sampling.temperature, 0);
  EXPECT_FALSE(config.max_new_tokens || config.max_length);
}

TEST(GenerationConfig, DrawsAsTransformersDoes) {
  const struct {
    const char* file;
    double temperature;
    int64_t top_k;
    double top_p;
  } cases[] = {
      {"{}", 0, 0, 1},
      {R"({"temperature": 0.6})", 0, 0, 1},
      {R"({"do_sample": false, "temperature": 0.6, "top_k": 20})", 0, 20, 1},
      {R"({"do_sample": null, "temperature": 0.6})", 0, 0, 1},
      {R"({"do_sample": true})", 1, 50, 1},
      {R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9})", 0.6, 50, 0.9},
      {R"({"do_sample": true, "top_k": 0})", 1, 0, 1},
      {R"({"do_sample": true, "top_k": null, "top_p": null})", 1, 50, 1},
      {R"({"do_sample": true, "top_k": 20, "top_p": 0})", 1, 1, 1},
      {R"({"do_sample": true, "top_k": 20, "top_p": 1.5})", 1, 20, 1},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.file);
    const GenerationConfig config = read(json::parse(each.file));
    EXPECT_EQ(config.sampling.temperature, each.temperature);
    EXPECT_EQ(config.sampling.top_k, each.top_k);
    EXPECT_EQ(config.sampling.top_p, each.top_p);
    EXPECT_EQ(config.stop_ids, std::vector<int32_t>{});
    EXPECT_TRUE(config.unfollowed.empty());
  }
}

TEST(GenerationConfig, ReadsMinPAndThePenaltyOfRepetitions) {
  const SamplingSpec stated = read({{"min_p", 0.1}, {"repetition_penalty", 1.05}}).sampling;
  EXPECT_EQ(stated.min_p, 0.1);
  EXPECT_EQ(stated.repetition_penalty, 1.05);
  const SamplingSpec left_out = read({{"min_p", nullptr}}).sampling;
  EXPECT_EQ(left_out.min_p, 0);
  EXPECT_EQ(left_out.repetition_penalty, 1);
}

TEST(GenerationConfig, NamesWhatIsNotFollowedAndNothingElse) {
  const json harmless{{"_from_model_config", true},
                      {"transformers_version", "5.24.0"},
                      {"use_cache", true},
                      {"cache_implementation", "hybrid"},
                      {"num_beams", 1},
                      {"early_stopping", false},
                      {"repetition_penalty", 1.0},
                      {"typical_p", 1.0},
                      {"no_repeat_ngram_size", 0},
                      {"bad_words_ids", nullptr},
                      {"suppress_tokens", json::array()},
                      {"num_return_sequences", 1},
                      {"remove_invalid_values", false},
                      {"renormalize_logits", true},
                      {"output_scores", true},
                      {"pad_token_id", 0},
                      {"bos_token_id", 1},
                      {"min_length", 0}};
  EXPECT_TRUE(read(harmless).unfollowed.empty()) << read(harmless).unfollowed[0];
  const json named{{"typical_p", 0.9},
                   {"num_beams", 4},
                   {"suppress_tokens", {3, 4}},
                   {"stop_strings", "x"},
                   {"guidance_scale", 2},
                   {"unheard_of", {{"a", 1}}},
                   {"eos_token_id", {2, 100, -1}}};
  EXPECT_EQ(
      read(named).unfollowed,
      (std::vector<std::string>{"eos_token_id 100, of a vocabulary of 100 ids",
                                "eos_token_id -1, of a vocabulary of 100 ids", "guidance_scale 2",
                                "num_beams 4", "stop_strings \"x\"", "suppress_tokens [3,4]",
                                "typical_p 0.9", "unheard_of {\"a\":1}"}));
  EXPECT_EQ(read(named).stop_ids, std::vector<int32_t>{2});
}

TEST(GenerationConfig, ErrorsNameTheMember) {
  for (const auto& [file, named] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "expected an object"},
           {"{", "not valid JSON"},
           {R"({"eos_token_id": "2"})", "eos_token_id is \"2\""},
           {R"({"eos_token_id": [2, 1.5]})", "eos_token_id is [2,1.5]"},
           {R"({"do_sample": "yes"})", "do_sample is \"yes\""},
           {R"({"do_sample": true, "temperature": -1})", "temperature is -1"},
           {R"({"do_sample": true, "temperature": "hot"})", "temperature is \"hot\""},
           {R"({"top_k": -1})", "top_k is -1"},
           {R"({"top_p": -0.5})", "top_p is -0.5"},
           {R"({"min_p": 1.5})", "min_p is 1.5"},
           {R"({"repetition_penalty": 0})", "repetition_penalty is 0"},
           {R"({"max_new_tokens": 1.5})", "max_new_tokens is 1.5"}}) {
    const std::string message = message_of(ErrorKind::kData, [&] {
      read_generation_config({.files = {{"generation_config.json", file}}}, source());
    });
    EXPECT_TRUE(message.starts_with("m/generation_config.json: ")) << message;
    EXPECT_NE(message.find(named), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ashlar::eval
