// Files that a model has beside weights and config, in a directory, in a step, and back.
#include "ashlar/models/companions.h"

#include <gtest/gtest.h>

#include "ashlar/models/hf/write.h"
#include "ashlar/models/write_step.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/errors.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::models {
namespace {

using testing_support::message_of;

TEST(Companions, OfAllFilesThoseOfTokenizersAndGenerationGoAlong) {
  for (const char* name :
       {"tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json", "vocab.txt",
        "merges.txt", "tekken.json", "tokenizer.model.v3"})
    EXPECT_TRUE(goes_along(name) && is_of_tokenizer(name)) << name;
  EXPECT_TRUE(goes_along("generation_config.json"));
  EXPECT_FALSE(is_of_tokenizer("generation_config.json"));
  for (const char* name : {"config.json", "model.safetensors", "model.json", "recipe.toml",
                           "trainer.json", "timing.json", "README.md", "chat_template.\n", ""})
    EXPECT_FALSE(goes_along(name)) << name;
}

LogicalTensor tensor(const char* name, DType dtype, int64_t count) {
  return {name, dtype, {count}, Role::kParameter};
}

TEST(Companions, TheTypeOfMostElementsIsTheUsualOne) {
  const LogicalTensor tensors[] = {tensor("a", DType::kF32, 7), tensor("b", DType::kF16, 5),
                                   tensor("c", DType::kF16, 5), tensor("d", DType::kF64, 9)};
  const ElementTypes types = types_of(tensors);
  EXPECT_EQ(types, (ElementTypes{DType::kF16, {{"a", DType::kF32}, {"d", DType::kF64}}}));
  EXPECT_EQ(types.of("a"), DType::kF32);
  EXPECT_EQ(types.of("none"), DType::kF16);
}

class CompanionsOfStep : public testing::Test {
 protected:
  // A step with these companions, and what is read of them there.
  Companions through_step(const Companions& companions, const std::string& source = "") {
    ModelStep step{.spec = model_of(odd_spec())};
    add_companions(companions, source, step.extra, step.sections);
    section_ = step.sections.contains("hf") ? step.sections.at("hf") : "";
    const Values values = random_values(odd_spec(), DType::kF32);
    const std::string root = "root" + std::to_string(++roots_);
    const auto made =
        write_model_step(*files_, root, step, TensorsInMemory(values.pieces), 1, log_);
    return companions_in(checkpoint::StepReader(*files_, made.directory));
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_{[](std::string_view) {}};
  std::string section_;
  int roots_ = 0;
};

TEST_F(CompanionsOfStep, ComeBackAsTheyWere) {
  Companions companions;
  companions.files = {{"tokenizer.model", std::string("\0\1\xff", 3)},
                      {"chat_template.jinja", "{{ x }}"},
                      {"generation_config.json", "{\"a\" : 1}\n"},
                      {"tokenizer.json", ""}};
  companions.types = ElementTypes{DType::kF16, {{"lm_head.weight", DType::kF32}}};
  companions.bos_id = -1;
  const Companions back = through_step(companions, "models/m");
  EXPECT_EQ(back.files, companions.files);
  EXPECT_EQ(back.types, companions.types);
  EXPECT_EQ(back.bos_id, -1);
  EXPECT_EQ(section_, R"({"source":"models/m","dtype":"F16",)"
                      R"("other_dtypes":{"F32":["lm_head.weight"]},"bos_id":-1})");
  EXPECT_EQ(through_step({.bos_id = 7}).bos_id, 7);
  const Companions none = through_step({});
  EXPECT_TRUE(none.files.empty() && !none.types && !none.bos_id);
  EXPECT_EQ(section_, "");
}

// The section as an import wrote it before there was more to say.
TEST_F(CompanionsOfStep, OlderStepsSayNothing) {
  ModelStep step{.spec = model_of(odd_spec())};
  step.sections["hf"] = R"({"source": "models/m"})";
  step.extra = {{"tokenizer.model", "t", false}};
  const Values values = random_values(odd_spec(), DType::kF32);
  const auto made = write_model_step(*files_, "old", step, TensorsInMemory(values.pieces), 1, log_);
  const Companions read = companions_in(checkpoint::StepReader(*files_, made.directory));
  EXPECT_EQ(read.files.size(), 1u);
  EXPECT_TRUE(!read.types && !read.bos_id);
}

TEST_F(CompanionsOfStep, WhatWasNotWrittenSoIsCorrupt) {
  for (const auto& [section, named] : std::vector<std::pair<std::string, std::string>>{
           {R"({"dtype": "F8"})", "'F8' is none of"},
           {R"({"dtype": 3})", "dtype is 3"},
           {R"({"dtype": "F16", "other_dtypes": {"F32": [3]}})", "holds 3"},
           {R"({"dtype": "F16", "other_dtypes": {"I8": ["a"]}})", "'I8' is none of"},
           {R"({"bos_id": -2})", "bos_id is -2"}}) {
    ModelStep step{.spec = model_of(odd_spec())};
    step.sections["hf"] = section;
    const Values values = random_values(odd_spec(), DType::kF32);
    const std::string root = "bad" + std::to_string(++roots_);
    const auto made =
        write_model_step(*files_, root, step, TensorsInMemory(values.pieces), 1, log_);
    const std::string message = message_of(ErrorKind::kCorrupt, [&] {
      companions_in(checkpoint::StepReader(*files_, made.directory));
    });
    EXPECT_NE(message.find(named), std::string::npos) << message;
    EXPECT_NE(message.find("manifest.json: hf"), std::string::npos) << message;
  }
}

TEST(CompanionsOfDirectory, AreReadThroughLinksAndTheRestIsNamed) {
  const auto files = memory_files();
  const Values values = random_values(odd_spec(), DType::kF32);
  HfWriteOptions options;
  options.files = {{"tokenizer.json", "{}"}, {"LICENSE", "free"}, {"more.py", ""}};
  write_hf_model(*files, "m", model_of(odd_spec()), values.pieces, options);
  const ModelSource source{.path = "m",
                           .resolved = "m",
                           .origin = "",
                           .hugging_face = true,
                           .spec = model_of(odd_spec())};
  const Companions found = companions_of(*files, source);
  EXPECT_EQ(found.files.size(), 2u);  // generation_config.json too
  EXPECT_EQ(found.types->usual, DType::kBF16);
  // Balancing biases are F32 at least.
  for (const auto& [name, type] : found.types->others) {
    EXPECT_TRUE(name.ends_with("balancing_biases")) << name;
    EXPECT_EQ(type, DType::kF32);
  }
  EXPECT_EQ(left_behind(*files, "m"), (std::vector<std::string>{"LICENSE", "more.py"}));
}

}  // namespace
}  // namespace ashlar::models
