// Recipes of a few lines whose model is that of init.model: what they train is what transformers
// computed (tests/fixtures/hf_*/expected.json), whatever keys of the family have no default's
// value.
#include "ashlar/train/read_recipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/text.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/support/read_json.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::train {
namespace {

using ashlar::testing_support::message_of;
using nlohmann::json;
using Overrides = std::vector<std::string>;

class ReadRecipe : public testing::TestWithParam<const char*> {
 protected:
  std::string path(const std::string& name) const { return root_ / name; }
  // "init.model" and "data.train", and the run's directory.
  std::string two_lines(const std::string& model, const std::string& run = "run") {
    const std::string file = path(run + ".toml");
    if (files_->stat(file)) files_->remove(file);
    write_text(*files_, file,
               fmt::format("init.model = \"{}\"\ndata.train = \"{}\"\ntrain.run_dir = \"{}\"\n",
                           model, path("text"), path(run)));
    return file;
  }
  Recipe read(const std::string& file, const Overrides& more = {},
              std::optional<int64_t> from_step = {}) {
    return read_recipe(*files_, file, more, from_step);
  }
  void train(const Recipe& recipe) {
    said_.clear();
    start_run(recipe, *files_, log_, {});
  }
  std::string copy_of(const std::string& name, const std::string& to,
                      const std::function<void(json&)>& change, bool weights = true) {
    const std::string from = std::string(ASHLAR_FIXTURES) + "/" + name;
    files_->make_directories(path(to));
    json config = json::parse(read_text(*files_, from + "/config.json"));
    change(config);
    write_text(*files_, path(to) + "/config.json", config.dump());
    if (weights)
      std::filesystem::copy_file(from + "/model.safetensors", path(to) + "/model.safetensors");
    return path(to);
  }

  ashlar::testing_support::TemporaryDirectory root_;
  std::unique_ptr<FileSystem> files_ = posix_files();
  std::string said_;
  Log log_{[this](std::string_view line) { said_ += std::string(line) + "\n"; }};
};

const Overrides kSmall = {"data.tokenizer=byte",  "data.validation_fraction=0",
                          "train.micro_batch=1",  "train.global_batch=1",
                          "train.eval_every=0",   "train.threads=1",
                          "train.precision=fp32", "data.verify=off",
                          "optim.warmup_steps=0"};

Overrides with(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_P(ReadRecipe, TheFirstLossIsThatOfTransformers) {
  const std::string directory = GetParam();
  const json expected = ashlar::testing_support::read_json(directory + "/expected.json");
  std::vector<int32_t> ids = expected["ids"];
  const std::vector<int32_t> targets = expected["targets"];
  ids.push_back(targets.back());
  data::write_documents(*files_, path("text"), {ids}, 120);
  const std::string model = std::string(ASHLAR_FIXTURES) + "/" + directory;
  train(read(two_lines(model), with(kSmall, {"train.steps=1", fmt::format("data.sequence_length={}",
                                                                          targets.size())})));
  EXPECT_EQ(said_.find("warning: model."), std::string::npos) << said_;
  double loss = 0.0;
  for (const std::string& line : split(read_text(*files_, path("run/metrics.jsonl")), '\n'))
    if (!line.empty() && json::parse(line).contains("loss")) loss = json::parse(line).at("loss");
  const double wanted = expected["loss"];
  EXPECT_NEAR(loss, wanted, 3e-5 * wanted);
}

INSTANTIATE_TEST_SUITE_P(All, ReadRecipe,
                         testing::Values("hf_llama", "hf_qwen3", "hf_mixtral", "hf_qwen3_moe",
                                         "hf_minimax", "hf_qwen3_next", "hf_small"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ReadRecipe, IdsAndBasesAreTheDirectorys) {
  const std::string model = copy_of(
      "hf_llama", "hf",
      [](json& config) {
        config["bos_token_id"] = 101;
        config["eos_token_id"] = 102;
        config["pad_token_id"] = nullptr;
        config["rms_norm_eps"] = 3e-6;
        config["rope_parameters"]["rope_theta"] = 7e5;
        config["max_position_embeddings"] = 640;
      },
      false);
  const ModelKeys keys = read(two_lines(model)).model;
  EXPECT_EQ(keys.bos_token_id, 101);
  EXPECT_EQ(keys.eos_token_ids, std::vector<int64_t>{102});
  EXPECT_EQ(keys.pad_token_id, -1);
  EXPECT_EQ(keys.rms_norm_eps, 3e-6);
  EXPECT_EQ(keys.rope_theta, 7e5);
  EXPECT_EQ(keys.max_position_embeddings, 640);
  EXPECT_FALSE(keys.tie_word_embeddings);
  const Recipe other = read(two_lines(model), {"model.rope_theta=1e4"});
  warn_of_other_model(*files_, other, log_);
  EXPECT_EQ(said_, "warning: model.rope_theta is 10000.0 in the recipe but 700000.0 in " + model +
                       "; the recipe's value holds\n");
}

// A step says it too, and the steps of the run before all others.
TEST_F(ReadRecipe, LaterStartsTakeTheModelOfTheRunsSteps) {
  std::vector<int32_t> ids(600);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * i % 119);
  data::write_documents(*files_, path("text"), {ids}, 120);
  const Overrides more = with(kSmall, {"data.sequence_length=32", "checkpoint.every=1"});
  const std::string model = copy_of("hf_llama", "hf", [](json&) {});
  const std::string two = two_lines(model);
  train(read(two, with(more, {"train.steps=1", "model.rope_theta=2e4"})));
  EXPECT_NE(said_.find("warning: model.rope_theta is 20000.0 in the recipe but 500000.0 in " +
                       model + "; the recipe's value holds\n"),
            std::string::npos)
      << said_;
  train(read(two, with(more, {"train.steps=2", "model.rope_theta=3e4"})));
  files_->remove_all(model);
  const Recipe on = read(two, with(more, {"train.steps=3"}));
  EXPECT_EQ(on.model.rope_theta, 3e4);
  EXPECT_EQ(read(two, more, 1).model.rope_theta, 2e4);
  EXPECT_EQ(read(two_lines(path("run"), "next"), more).model.rope_theta, 3e4);
  EXPECT_EQ(read(two_lines(path("run/checkpoints/") + checkpoint::step_name(1), "next"), more)
                .model.rope_theta,
            2e4);
  train(on);
  EXPECT_NE(said_.find("continuing after step 2"), std::string::npos) << said_;
  EXPECT_EQ(said_.find("model."), std::string::npos) << said_;
  EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { read(two, {"model.vocab_size=130"}); }),
            two + ": model.vocab_size is 130 but " + path("run/checkpoints/") +
                checkpoint::step_name(3) +
                " has 120; choose the sizes of init.model, or leave them out, or other weights");
  // A newest step whose description is damaged is passed over; the start will set it aside.
  const std::string commit = path("run/checkpoints/") + checkpoint::step_name(3) + "/COMMIT";
  files_->remove(commit);
  write_text(*files_, commit, "none\n");
  EXPECT_EQ(read(two, more).model.rope_theta, 3e4);
}

TEST_F(ReadRecipe, WhatIsNoModelIsRefused) {
  files_->make_directories(path("empty"));
  EXPECT_TRUE(message_of(ErrorKind::kConfig, [&] {
                read(two_lines(path("nowhere")));
              }).starts_with("init.model is " + path("nowhere") + ", which does not exist; "));
  EXPECT_TRUE(message_of(ErrorKind::kConfig, [&] {
                read(two_lines(path("empty")));
              }).starts_with(path("empty") + ": expected a Hugging Face directory"));
  const std::string bad = copy_of(
      "hf_llama", "bad", [](json& config) { config["head_dim"] = "eight"; }, false);
  EXPECT_TRUE(message_of(ErrorKind::kData, [&] {
                read(two_lines(bad));
              }).starts_with(bad + "/config.json: head_dim is "));
}

}  // namespace
}  // namespace ashlar::train
