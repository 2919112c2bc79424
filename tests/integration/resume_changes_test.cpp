// A start that continues another recipe's run, or an older program's: what it refuses, what it says
// has changed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

TEST(Resume, AnotherModelOrDatasetIsRefused) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args());
  const Result model = run(scratch, train_args({"model.num_experts=6", "train.steps=40"}));
  EXPECT_EQ(model.code, 2) << model.err;
  const Result optimizer = run(scratch, train_args({"optim.matrices=adamw", "train.steps=40"}));
  EXPECT_EQ(optimizer.code, 2) << optimizer.err;
  // Other text under the same prefix.
  for (const char* suffix : {".bin", ".idx", ".json", ".tokenizer.model"})
    fs::remove(scratch / (std::string("text") + suffix));
  write_file(scratch / "other.txt", read_file(kData + "/vectors/stones.txt").substr(3000));
  run_ok(scratch, {"data", "prepare", "--input", "other.txt", "--documents", "blank-line",
                   "--tokenizer", "byte", "--out", "text", "--force"});
  const Result data = run(scratch, train_args({"train.steps=40"}));
  EXPECT_EQ(data.code, 24) << data.err;
  EXPECT_NE(data.err.find("data.allow_dataset_change"), std::string::npos) << data.err;
  for (const Result& result : {model, optimizer, data})
    EXPECT_NE(result.err.find("ashlar: "), std::string::npos);
  run_ok(scratch, train_args({"train.steps=40", "data.allow_dataset_change=true"}));
}

// Content of every file, and the names of the directories.
std::map<std::string, std::string> everything_in(const Scratch& scratch) {
  std::map<std::string, std::string> all = read_tree(scratch.path());
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path()))
    if (entry.is_directory())
      all.emplace(fs::relative(entry.path(), scratch.path()).string(), "directory");
  return all;
}

TEST(Resume, ARefusedStartChangesNothing) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args());
  const auto before = everything_in(scratch);
  const auto expect_refused = [&](int code, std::vector<std::string> overrides,
                                  const char* directory) {
    SCOPED_TRACE(overrides[0] + " in " + directory);
    overrides.insert(overrides.begin(), {"train.steps=40", "optim.lr=1e-3",
                                         std::string("train.run_dir=") + directory});
    const Result result = run(scratch, train_args(overrides));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_TRUE(everything_in(scratch) == before) << result.err;
  };
  // A new run may choose these.
  const std::vector<std::pair<int, std::vector<std::string>>> of_another_run = {
      {2, {"train.seed=7"}},
      {2, {"model.num_experts=6"}},
      {2, {"optim.matrices=adamw"}},
      {24, {"data.sequence_length=64"}},
      {24, {"data.sequence_length=64", "--ranks", "2"}}};
  for (const auto& [code, overrides] : of_another_run) expect_refused(code, overrides, "run");
  const std::vector<std::pair<int, std::vector<std::string>>> of_any_run = {
      {2, {"model.vocab_size=200"}},
      {2, {"train.threads=many"}},
      {2, {"train.micro_batch=3"}},
      {2, {"train.seed=1", "--ranks", "3"}},
      {22, {"train.memory_limit_mib=1"}},
      {24, {"data.train=gone"}},
      {24, {"data.validation=gone"}},
      {24, {"data.tokenizer=gone"}},
      {24, {"data.train=gone", "--ranks", "2"}}};
  for (const auto& [code, overrides] : of_any_run)
    for (const char* directory : {"run", "new/run"}) expect_refused(code, overrides, directory);
}

TEST(Resume, AFinishedRunSaysSoAndHowToGoOn) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args());
  const auto before = everything_in(scratch);
  const Result again = run(scratch, train_args());
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(
      again.err.find("the run is finished: step 30 of 30 is done; raise train.steps to go on"),
      std::string::npos)
      << again.err;
  const Result fewer = run(scratch, train_args({"train.steps=20", "--ranks", "2"}));
  EXPECT_EQ(fewer.code, 0);
  EXPECT_NE(fewer.err.find("step 30 of 20 is done"), std::string::npos) << fewer.err;
  EXPECT_TRUE(everything_in(scratch) == before);
  const Result more = run(scratch, train_args({"train.steps=31"}));
  EXPECT_EQ(more.code, 0);
  EXPECT_EQ(more.err.find("finished:"), std::string::npos) << more.err;
  EXPECT_EQ(read_steps(scratch / "run").size(), 31u);
}

TEST(Resume, TellsWhatChangedInTheRecipe) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args());
  const Result changed =
      run(scratch, train_args({"train.steps=40", "optim.lr=1e-3", "train.global_batch=8",
                               "data.num_streams=4", "optim.schedule=linear", "health.window=64"}));
  ASSERT_EQ(changed.code, 0) << changed.err;
  EXPECT_NE(changed.err.find("changed since step 30:\n"
                             "  optim.lr was 0.002, is 0.001\n"
                             "  optim.schedule was \"cosine\", is \"linear\"\n"
                             "  train.steps was 30, is 40\n"
                             "  train.global_batch was 4, is 8\n"
                             "  health.window was 128, is 64\n"),
            std::string::npos)
      << changed.err;
  const Result again =
      run(scratch, train_args({"train.steps=40", "optim.lr=1e-3", "train.global_batch=8",
                               "data.num_streams=4", "optim.schedule=linear", "health.window=64"}));
  EXPECT_EQ(again.err.find("changed since"), std::string::npos) << again.err;
}

// Manifest and metrics name the instruction set of the kernels, which changes the bits of results.
TEST(Resume, TellsOfAnotherInstructionSet) {
  const Scratch scratch;
  prepare_text(scratch);
  const auto with = [](const char* isa) { return [isa] { setenv("ASHLAR_ISA", isa, 1); }; };
  const Result first =
      run(scratch, train_args({"train.steps=2", "checkpoint.every=2"}), with("avx2"));
  if (first.code == 2) GTEST_SKIP() << "needs AVX2: " << first.err;
  ASSERT_EQ(first.code, 0) << first.err;
  const nlohmann::json manifest =
      nlohmann::json::parse(read_file(step_directory(scratch / "run", 2) / "manifest.json"));
  EXPECT_EQ(manifest["trainer"]["isa"], "avx2");
  const Result same = run(scratch, train_args({"train.steps=4"}), with("avx2"));
  EXPECT_EQ(same.err.find("instruction set"), std::string::npos) << same.err;
  const Result other = run(scratch, train_args({"train.steps=6"}), with("x86-64"));
  EXPECT_NE(other.err.find("changed since step 4:\n"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("  the instruction set of kernels was avx2, is x86-64\n"),
            std::string::npos)
      << other.err;
  const std::string metrics = read_file(scratch / "run" / "metrics.jsonl");
  EXPECT_TRUE(metrics.starts_with("{\"event\":\"start\",\"step\":0,\"isa\":\"avx2\","))
      << metrics;
  for (const char* line : {"{\"event\":\"start\",\"step\":2,\"isa\":\"avx2\",",
                           "{\"event\":\"start\",\"step\":4,\"isa\":\"x86-64\","})
    EXPECT_EQ(count_of(metrics, line), 1) << metrics;
}

// `auto` is saved as what it was: a later start that computes otherwise says so.
TEST(Resume, TellsOfAnotherPrecision) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.precision=auto"}));
  const auto saved_as = [&](const std::string& name) {
    return read_file(scratch / "run/recipe.toml").find("precision = \"" + name + "\"") !=
           std::string::npos;
  };
  const std::string was = saved_as("bf16") ? "bf16" : "fp32", is = was == "bf16" ? "fp32" : "bf16";
  EXPECT_TRUE(saved_as(was));
  const Result other = run(scratch, train_args({"train.steps=31", "train.precision=" + is}));
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.err.find("train.precision was \"" + was + "\", is \"" + is + "\""),
            std::string::npos)
      << other.err;
}

// It once made every checkpoint of the run look damaged.
TEST(Resume, AnotherHealthWindowTakesOverTheNewestSteps) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"health.window=16"}));
  for (const char* window : {"8", "24"}) {
    const Result result =
        run(scratch, train_args({std::string("train.steps=") + (window[0] == '8' ? "40" : "50"),
                                 std::string("health.window=") + window}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  }
  EXPECT_FALSE(fs::exists(scratch / "run/checkpoints/.bad"));
}

// tests/fixtures/step_0.1.0 was saved by that version, whose model.json held three choices of the
// model.
TEST(Resume, StepsOfEarlierVersionsLoad) {
  const Scratch scratch;
  prepare_text(scratch);
  fs::create_directories(scratch / "run");
  fs::copy(kData + "/step_0.1.0", scratch / "run/checkpoints", fs::copy_options::recursive);
  const nlohmann::json scores =
      nlohmann::json::parse(run_ok(scratch, {"score", "--model", "run/checkpoints", "--dtype",
                                             "fp64", "--ids", "72,101,108,108,111,44,32,119"}));
  EXPECT_NEAR(scores["loss"].get<double>(), 5.749440075476452, 1e-12);
  const Result on = run(
      scratch, train_args({"moe.skip_output=identity", "model.layer_types=alternate",
                           "model.sliding_window=9", "model.hidden_size=8", "model.head_dim=4",
                           "model.num_experts=2", "model.moe_intermediate_size=4",
                           "model.router_hidden_size=4", "train.precision=fp64", "train.steps=3"}));
  EXPECT_EQ(on.code, 0) << on.err;
  // Its recipe has keys that are gone, and its loader state no fingerprints of datasets.
  EXPECT_NE(on.err.find("changed since step 2:\n"), std::string::npos) << on.err;
  EXPECT_EQ(on.err.find("is not known"), std::string::npos) << on.err;
  const Steps steps = read_steps(scratch / "run");
  ASSERT_EQ(steps.size(), 1u) << "it goes on after step 2";
  EXPECT_NEAR(std::stod(steps.at(3)[0].loss), 5.757990479651924, 1e-12);
}

}  // namespace
}  // namespace ashlar::integration
