// What the process was started with: closed standard streams, limits of the system, signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Text for the console must reach no file of the run, whichever descriptors are free at the start.
TEST(Process, ClosedStandardStreamsLeaveFilesWhole) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::vector<int>> cases{{2}, {1, 2}, {0, 1, 2}, {0, 2}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = "run" + std::to_string(i);
    const Result result = run(scratch, train_args({"train.run_dir=" + name}), [&] {
      for (const int number : cases[i]) close(number);
    });
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out + result.err, "");
    EXPECT_EQ(read_steps(scratch / name).size(), 30u);  // complains of lines that are no JSON
    run_ok(scratch, {"ckpt", "verify", step_directory(scratch / name, 30).string()});
  }
}

TEST(Process, AResultThatCannotBePrintedIsAnError) {
  const Scratch scratch;
  const std::vector<std::vector<std::string>> commands{
      {"info"}, {"--version"}, {"generate", "--model", kData + "/hf_small", "--ids", "1,2"}};
  for (const auto& args : commands) {
    SCOPED_TRACE(args[0]);
    const Result full = run(scratch, args, [] {
      if (freopen("/dev/full", "w", stdout) == nullptr) _exit(126);
    });
    EXPECT_EQ(full.code, 25) << full.err;
    EXPECT_NE(full.err.find("stdout: No space left on device"), std::string::npos) << full.err;
    const Result closed = run(scratch, args, [] { close(STDOUT_FILENO); });
    EXPECT_EQ(closed.code, 25) << closed.err;
    EXPECT_NE(closed.err.find("stdout: Bad file descriptor"), std::string::npos) << closed.err;
  }
}

// Waits until the file is there or the program ends.
void wait_for(Program& program, const fs::path& path) {
  while (!fs::exists(path) && program.running())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// As from `timeout`, mpirun and Slurm, which signal more than once: on one rank and on threads.
TEST(Process, RepeatedStopSignalsLoseNothing) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    for (const int ranks : {1, 2}) {
      const std::string name = "run" + std::to_string(signal) + "x" + std::to_string(ranks);
      SCOPED_TRACE(name);
      Program program(scratch.path(),
                      run_args(name, ranks, {"train.steps=1000000", "checkpoint.every=0"}));
      wait_for(program, scratch / name / "metrics.jsonl");
      // For less than a second: later a SIGINT would be another Ctrl-C.
      const auto end = Clock::now() + std::chrono::milliseconds(400);
      while (Clock::now() < end && program.running()) {
        program.send(signal);
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
      const Result result = program.wait();
      EXPECT_EQ(result.code, 27) << result.signal << result.err;
      EXPECT_EQ(count_of(result.err, "and stopping"), 1) << result.err;
      const int64_t done = read_steps(scratch / name).rbegin()->first;
      run_ok(scratch, {"ckpt", "verify", step_directory(scratch / name, done).string()});
    }
  }
}

// mpirun passes SIGUSR1 on.
TEST(Process, RepeatedStopSignalsLoseNothingUnderMpirun) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(),
                  run_args("run", 1, {"train.steps=1000000", "checkpoint.every=20"}), {},
                  mpirun(2));
  wait_for(program, step_directory(scratch / "run", 20) / "COMMIT");
  for (int i = 0; i < 10 && program.running(); ++i) {
    program.send(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Result result = program.wait();
  EXPECT_EQ(result.code, 27) << result.err;
  EXPECT_EQ(count_of(result.err, "USR1: saving step"), 1) << result.err;
  const int64_t done = read_steps(scratch / "run").rbegin()->first;
  run_ok(scratch, {"ckpt", "verify", step_directory(scratch / "run", done).string()});
}

TEST(Process, ASecondInterruptASecondLaterGivesUp) {
  const Scratch scratch;
  prepare_text(scratch);
  // A step of many seconds, so that the run is still in it.
  Program program(scratch.path(), train_args({"train.global_batch=100000"}));
  wait_for(program, scratch / "run/metrics.jsonl");
  program.send(SIGINT);
  program.send(SIGINT);  // the same Ctrl-C by another way
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ASSERT_TRUE(program.running());
  program.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(program.running());
  program.send(SIGINT);
  const Result result = program.wait();
  EXPECT_EQ(result.signal, SIGINT) << result.code;
  EXPECT_NE(result.err.find("\nashlar: INT again: ended without saving"), std::string::npos)
      << result.err;
}

// One trains; the others are told so and change nothing, whatever their recipe says.
TEST(Process, OfSeveralStartsAtOnceOneTrains) {
  const Scratch scratch;
  prepare_text(scratch);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<Program>> programs;
    for (int i = 0; i < 3; ++i)
      programs.push_back(std::make_unique<Program>(
          scratch.path(), train_args({"train.steps=1000000", "checkpoint.every=0",
                                      "train.log_every=" + std::to_string(100 + i)})));
    std::vector<int> running{0, 1, 2};
    while (running.size() > 1) {
      std::erase_if(running, [&](int i) { return !programs[size_t(i)]->running(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(running.size(), 1u);
    Program& winner = *programs[size_t(running[0])];
    wait_for(winner, scratch / "run/metrics.jsonl");
    winner.send(SIGTERM);
    for (int i = 0; i < 3; ++i) {
      const Result result = programs[size_t(i)]->wait();
      EXPECT_EQ(result.code, i == running[0] ? 27 : 2) << result.err;
      EXPECT_EQ(count_of(result.err, " is in use: process "), i == running[0] ? 0 : 1);
    }
    EXPECT_NE(read_file(scratch / "run/recipe.toml")
                  .find("log_every = " + std::to_string(100 + running[0])),
              std::string::npos);
  }
}

}  // namespace
}  // namespace ashlar::integration
