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

}  // namespace
}  // namespace ashlar::integration
