// Runs on several ranks as a user starts them: threads, processes under mpirun, and their faults.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support.h"

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
    EXPECT_EQ(count_of(result.err, "ashlar: "), 1) << result.err;
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

}  // namespace
}  // namespace ashlar::integration
