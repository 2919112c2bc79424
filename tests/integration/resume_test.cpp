// A run that was killed, stopped or repeated gives the bits of one that ran straight.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 200;

std::vector<std::string> long_run(const std::string& directory,
                                  std::vector<std::string> more = {}) {
  more.insert(more.end(), {"train.steps=200", "checkpoint.every=20", "checkpoint.keep=20",
                           "train.eval_every=40", "train.log_every=50", "data.sequence_length=64",
                           "model.hidden_size=64", "train.run_dir=" + directory});
  return train_args(more);
}

// Names, types, shapes and bytes of a safetensors file; its metadata names the save, and is left
// out.
std::string tensors_of(const fs::path& path) {
  const std::string bytes = read_file(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  header.erase("__metadata__");
  return header.dump().append(bytes, 8 + header_bytes);
}

// Weights, optimizer, balancing and cursor of a step.
std::map<std::string, std::string> state_of(const fs::path& run_directory, int64_t step) {
  std::map<std::string, std::string> state;
  for (const char* component : {"model", "optim", "loader"})
    for (const auto& entry :
         fs::directory_iterator(step_directory(run_directory, step) / component))
      state[fs::path(component) / entry.path().filename()] = tensors_of(entry.path());
  EXPECT_EQ(state.size(), 3u);
  return state;
}

// Every line of every step of `again` has the bits of the straight run, those done twice included.
void expect_same_run(const Scratch& scratch, const std::string& straight,
                     const std::string& again) {
  const Steps expected = read_steps(scratch / straight), found = read_steps(scratch / again);
  ASSERT_EQ(expected.size(), size_t(kSteps));
  for (const auto& [step, lines] : found)
    for (const StepLine& line : lines)
      ASSERT_TRUE(line == expected.at(step)[0])
          << again << " step " << step << ": loss " << line.loss << ", straight "
          << expected.at(step)[0].loss;
  EXPECT_TRUE(found.contains(kSteps));
  EXPECT_TRUE(state_of(scratch / again, kSteps) == state_of(scratch / straight, kSteps)) << again;
}

// Waits until `condition` holds or the program ends.
template <typename Condition>
void wait_until(Program& program, Condition condition) {
  while (!condition() && program.running())
    std::this_thread::sleep_for(std::chrono::microseconds(200));
}

class Precisions : public testing::TestWithParam<const char*> {};

TEST_P(Precisions, KilledAndResumedRunsHaveTheBitsOfAStraightOne) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::string precision = std::string("train.precision=") + GetParam();
  run_ok(scratch, long_run("straight", {precision}));
  run_ok(scratch, long_run("again", {precision}));
  expect_same_run(scratch, "straight", "again");

  std::mt19937 random(20250101);
  int killed = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::string name = fmt::format("killed{}", attempt);
    {
      Program program(scratch.path(), long_run(name, {precision}));
      const fs::path committed = step_directory(scratch / name, 100) / "COMMIT";
      wait_until(program, [&] { return fs::exists(committed); });
      if (attempt % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
      } else {
        wait_until(program, [&] { return is_saving(scratch / name / "checkpoints"); });
      }
      program.send(SIGKILL);
      const Result result = program.wait();
      if (result.signal != SIGKILL) continue;  // it was faster
      ++killed;
    }
    ASSERT_TRUE(fs::exists(step_directory(scratch / name, 100) / "COMMIT"));
    const Result resumed = run(scratch, long_run(name, {precision}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("continuing after step 1"), std::string::npos) << resumed.err;
    expect_same_run(scratch, "straight", name);
  }
  EXPECT_GE(killed, 2) << "the runs ended before they could be killed";
}

INSTANTIATE_TEST_SUITE_P(Resume, Precisions, testing::Values("fp32", "auto"));

// Router, biases and their state of a mixture of several experts a token too.
TEST(Resume, MixturesOfSeveralExpertsHaveTheBitsOfAStraightRun) {
  const Scratch scratch;
  prepare_text(scratch);
  std::vector<std::string> overrides = {"model.layer_types=attention+moe",
                                        "model.router=linear",
                                        "model.num_experts_per_tok=2",
                                        "model.router_expert_bias=true",
                                        "model.shared_expert_intermediate_size=16",
                                        "model.shared_expert_gate=true",
                                        "moe.router_aux_loss_coef=0.02",
                                        "moe.balance.lr=0.01",
                                        "train.steps=20",
                                        "checkpoint.every=10",
                                        "train.eval_every=0",
                                        "train.run_dir=straight"};
  run_ok(scratch, train_args(overrides));
  fs::copy(scratch / "straight", scratch / "again", fs::copy_options::recursive);
  fs::remove_all(step_directory(scratch / "again", 20));
  overrides.back() = "train.run_dir=again";
  const Result result = run(scratch, train_args(overrides));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("continuing after step 10"), std::string::npos) << result.err;
  const auto straight = state_of(scratch / "straight", 20);
  EXPECT_TRUE(state_of(scratch / "again", 20) == straight);
  EXPECT_FALSE(state_of(scratch / "again", 10) == straight);
}

TEST(Resume, SigtermSavesAndTheNextStartFinishes) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, long_run("straight"));
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    const std::string name = fmt::format("stopped{}", signal);
    {
      Program program(scratch.path(), long_run(name));
      wait_until(program,
                 [&] { return fs::exists(step_directory(scratch / name, 20) / "COMMIT"); });
      program.send(signal);
      const Result result = program.wait();
      ASSERT_EQ(result.code, 27) << result.err;
      EXPECT_NE(result.err.find("and stopping"), std::string::npos) << result.err;
    }
    const int64_t done = read_steps(scratch / name).rbegin()->first;
    ASSERT_LT(done, kSteps);
    EXPECT_TRUE(fs::exists(step_directory(scratch / name, done) / "COMMIT")) << done;
    const Result rest = run(scratch, long_run(name));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_NE(rest.err.find(fmt::format("continuing after step {} ", done)), std::string::npos)
        << rest.err;
    // The extra checkpoint at the stop changes nothing; no step was done twice.
    for (const auto& [step, lines] : read_steps(scratch / name))
      EXPECT_EQ(lines.size(), 1u) << step;
    expect_same_run(scratch, "straight", name);
  }
}

// A signal is heeded between the micro-batches of a long step.  The step is left undone, the one
// before is saved, and the continued run has the bits of one that nobody stopped.
TEST(Resume, ALongStepIsLeftUndoneAndDoneAgain) {
  const Scratch scratch;
  prepare_text(scratch);
  const auto long_step = [](const std::string& name) {
    std::vector<std::string> args = run_args(name, 2);
    for (const char* more : {"train.global_batch=6000", "data.sequence_length=64", "train.steps=2",
                             "train.eval_every=0", "checkpoint.every=0"})
      args.push_back(more);
    return args;
  };
  run_ok(scratch, long_step("whole"));
  {
    Program program(scratch.path(), long_step("left"));
    // Which is made after the first step.
    wait_until(program, [&] { return fs::exists(scratch / "left" / "peak.json"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    program.send(SIGTERM);
    const Result result = program.wait();
    ASSERT_EQ(result.code, 27) << result.err;
    EXPECT_EQ(
        count_of(result.err, "ashlar: TERM: leaves this step undone, saves the last one and stops"),
        1)
        << result.err;
    EXPECT_EQ(count_of(result.err, "step 2 is left undone\n"), 1) << result.err;
    EXPECT_EQ(count_of(result.err, "TERM: saving step 1 and stopping\n"), 1) << result.err;
  }
  EXPECT_EQ(read_steps(scratch / "left").size(), 1u);
  run_ok(scratch, long_step("left"));
  EXPECT_TRUE(read_steps(scratch / "left") == read_steps(scratch / "whole"));
  EXPECT_TRUE(state_of(scratch / "left", 2) == state_of(scratch / "whole", 2));
}

TEST(Resume, DamagedNewestStepFallsBackToTheOneBefore) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, long_run("straight"));
  run_ok(scratch, long_run("run"));
  // One flipped bit in the weights of the last step, and a torn COMMIT in the one before.
  const fs::path last = step_directory(scratch / "run", 200);
  for (const auto& entry : fs::directory_iterator(last / "model")) {
    std::string bytes = read_file(entry.path());
    bytes[bytes.size() / 2] ^= 4;
    write_file(entry.path(), bytes);
  }
  const fs::path commit = step_directory(scratch / "run", 180) / "COMMIT";
  write_file(commit, read_file(commit).substr(0, 20));
  EXPECT_EQ(run(scratch, {"ckpt", "verify", last.string()}).code, 1);
  const Result result = run(scratch, long_run("run"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("continuing after step 160"), std::string::npos) << result.err;
  expect_same_run(scratch, "straight", "run");
}

TEST(Resume, MicroBatchesChangeNeitherOrderNorLossOfTheData) {
  const Scratch scratch;
  prepare_text(scratch);
  // Streams fix the order: 4 rows at once, or one row four times.
  const std::vector<std::string> same{"train.precision=fp64", "train.steps=20",
                                      "checkpoint.every=0"};
  for (const char* micro : {"4", "2", "1"}) {
    std::vector<std::string> overrides = same;
    overrides.push_back(std::string("train.micro_batch=") + micro);
    overrides.push_back(std::string("train.run_dir=micro") + micro);
    run_ok(scratch, train_args(overrides));
  }
  const Steps whole = read_steps(scratch / "micro4");
  ASSERT_EQ(whole.size(), 20u);
  for (const char* name : {"micro2", "micro1"}) {
    const Steps parts = read_steps(scratch / name);
    for (const auto& [step, lines] : parts) {
      // Sums in another order: fp64 differs in the last digits, which 20 updates amplify.
      EXPECT_NEAR(std::stod(lines[0].loss), std::stod(whole.at(step)[0].loss), 1e-9)
          << name << " step " << step;
      EXPECT_NEAR(std::stod(lines[0].gradient_norm), std::stod(whole.at(step)[0].gradient_norm),
                  1e-8)
          << name << " step " << step;
    }
  }
  // Same rows consumed: the cursors are equal, bit for bit.
  const auto cursor = [&](const std::string& name) {
    return tensors_of(step_directory(scratch / name, 20) / "loader/streams-00000.safetensors");
  };
  EXPECT_EQ(cursor("micro1"), cursor("micro4"));
  EXPECT_EQ(cursor("micro2"), cursor("micro4"));
}

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
  EXPECT_TRUE(metrics.starts_with("{\"event\":\"start\",\"step\":0,\"isa\":\"avx2\"}\n"))
      << metrics;
  for (const char* line : {"{\"event\":\"start\",\"step\":2,\"isa\":\"avx2\"}\n",
                           "{\"event\":\"start\",\"step\":4,\"isa\":\"x86-64\"}\n"})
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
