// Runs on several ranks as a user starts them: threads, processes under mpirun, and their faults.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

TEST(Ranks, ThreadsAndProcessesGiveTheSameBits) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, run_args("one", 1));
  run_ok(scratch, run_args("threads", 2));
  const Result result = run(scratch, run_args("processes", 1), {}, mpirun(2));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(read_steps(scratch / "threads") == read_steps(scratch / "processes"));
  expect_close(read_steps(scratch / "one"), read_steps(scratch / "threads"));
}

TEST(Ranks, ARunGoesOnWithAnotherNumberOfRanks) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, run_args("straight", 1, {"train.steps=40", "optim.schedule=constant"}));
  int ranks = 1;
  for (const char* steps : {"train.steps=10", "train.steps=20", "train.steps=30", "train.steps=40"})
    run_ok(scratch,
           run_args("parts", ranks == 4 ? 1 : (ranks *= 2), {steps, "optim.schedule=constant"}));
  expect_close(read_steps(scratch / "straight"), read_steps(scratch / "parts"));
}

TEST(Ranks, AFailureIsToldOnceWithItsExitCode) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const bool processes : {false, true}) {
    SCOPED_TRACE(processes);
    const Result result =
        run(scratch, run_args("small", processes ? 1 : 2, {"train.memory_limit_mib=2"}), {},
            processes ? mpirun(2) : std::vector<std::string>{});
    EXPECT_EQ(result.code, 22) << result.err;
    // A rank that the launcher ends may say that it was signalled.
    EXPECT_EQ(count_of(result.err, "ashlar: ") - count_of(result.err, "ashlar: TERM: "), 1)
        << result.err;
  }
}

TEST(Ranks, RefusesToRunManyTimesAlone) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch, run_args("run", 1), [] { setenv("SLURM_NTASKS", "4", 1); });
  EXPECT_EQ(result.code, 64) << result.err;
  EXPECT_NE(result.err.find("SLURM_NTASKS is 4"), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(scratch / "run"));
}

TEST(Ranks, RefusesABatchThatCannotBeShared) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch, run_args("run", 3));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_NE(result.err.find("choose one of: 1 2 4 8"), std::string::npos) << result.err;
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Lost {
  int rank;    // 0 leads the saves
  int signal;  // that it gets while all ranks write a step
};

// A rank that stands still, or is gone while the launcher lets the others go on: the time-out of
// the collectives holds, the reason is told before a save is waited for, and what was committed
// stays.
TEST(Ranks, ARankThatIsLostInASaveEndsTheRunInSeconds) {
  for (const Lost& lost : {Lost{1, SIGSTOP}, Lost{0, SIGSTOP}, Lost{1, SIGKILL}}) {
    SCOPED_TRACE(fmt::format("signal {} to rank {}", lost.signal, lost.rank));
    const Scratch scratch;
    prepare_text(scratch);
    // Tens of MiB, so that the signal comes while they are written.
    const std::vector<std::string> args =
        run_args("run", 1,
                 {"train.steps=1000000", "train.eval_every=0", "model.hidden_size=256",
                  "model.moe_intermediate_size=512", "checkpoint.every=2", "checkpoint.keep=2",
                  "checkpoint.gather_mib=0", "parallel.timeout_s=3", "parallel.pp=2"});
    std::vector<std::string> launcher = mpirun(2);
    if (lost.signal == SIGKILL) launcher.push_back("--enable-recovery");
    Program program(scratch.path(), args, {}, launcher);
    while (!std::filesystem::exists(step_directory(scratch / "run", 2) / "COMMIT") &&
           program.running())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const pid_t process = process_of_rank(program.pid(), lost.rank);
    ASSERT_GT(process, 0);
    while (!is_saving(scratch / "run/checkpoints") && program.running())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    kill(process, lost.signal);
    const auto start = Clock::now();
    while (program.running() && seconds_since(start) < 60)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_LT(seconds_since(start),
              40);  // 3, 1 to hear of others, 5 for saves, and a loaded machine
    kill(process, SIGKILL);
    program.send(SIGTERM);
    const Result result = program.wait();
    // With recovery mpirun has exit codes of its own.
    if (lost.signal == SIGSTOP) {
      EXPECT_EQ(result.code, 30) << result.err;
    }
    // A rank that the launcher ends may say that it was signalled.
    EXPECT_EQ(count_of(result.err, "ashlar: ") - count_of(result.err, "ashlar: TERM: "), 1)
        << result.err;
    const size_t told = result.err.find("ashlar: ");
    const size_t waited = result.err.find("before it ends, the run gives its saves 5 s");
    if (waited != result.err.npos) {
      EXPECT_LT(told, waited) << result.err;
    }
    for (const auto& entry : std::filesystem::directory_iterator(scratch / "run/checkpoints"))
      if (entry.path().filename().string().starts_with("step-"))
        run_ok(scratch, {"ckpt", "verify", entry.path().string()});
  }
}

}  // namespace
}  // namespace ashlar::integration
