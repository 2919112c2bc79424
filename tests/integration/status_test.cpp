// ashlar status beside a real run: while it trains, after a kill, and at its end.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "ashlar/core/process.h"
#include "ashlar/core/pulse.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

using nlohmann::json;

Result status_of(const Scratch& scratch, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> args{"status", "run"};
  args.insert(args.end(), flags.begin(), flags.end());
  return run(scratch, args);
}

// Returns once every rank has done so many steps in its process.
void await_steps(const Scratch& scratch, int num_ranks, int64_t steps, Program& program) {
  for (;;) {
    ASSERT_TRUE(program.running()) << program.wait().err;
    int ready = 0;
    for (const auto& [rank, page] : read_pulse(scratch / "run")) ready += page.steps_here >= steps;
    if (ready == num_ranks) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::vector<std::string> long_run(int num_ranks) {
  return run_args("run", num_ranks, {"train.steps=100000", "checkpoint.every=1000"});
}

TEST(Status, ShowsARunWhileItTrainsAndAfterItsKill) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), long_run(2));
  await_steps(scratch, 2, 3, program);
  const Result alive = status_of(scratch, {"--json"});
  EXPECT_EQ(alive.code, 0) << alive.err;
  const json shown = json::parse(alive.out);
  EXPECT_EQ(shown.at("state"), "running");
  EXPECT_EQ(shown.at("num_steps"), 100000);
  EXPECT_GE(shown.at("step").get<int64_t>(), 3);
  ASSERT_EQ(shown.at("ranks").size(), 2u);
  for (const json& rank : shown.at("ranks")) EXPECT_EQ(rank.at("process"), program.pid());

  program.send(SIGSTOP);
  while (stat_of_process(program.pid())->state != 'T') std::this_thread::yield();
  const Result held = status_of(scratch);
  EXPECT_TRUE(contains(held.out, ": suspended (state T) in ")) << held.out;

  program.send(SIGKILL);
  EXPECT_EQ(program.wait().signal, SIGKILL);
  const Result killed = status_of(scratch);
  EXPECT_EQ(killed.code, 5);
  EXPECT_TRUE(contains(killed.out, "ranks 0, 1 are gone without a word")) << killed.out;
  EXPECT_TRUE(contains(killed.out, "gone; was in")) << killed.out;

  const std::string shared = pulse_directory(scratch / "run");
  EXPECT_TRUE(std::filesystem::exists(shared));
  run_ok(scratch, run_args("run", 2, {"train.steps=4"}));
  EXPECT_FALSE(std::filesystem::exists(shared));
  const Result done = status_of(scratch, {"--follow"});
  EXPECT_EQ(done.code, 0);
  EXPECT_TRUE(done.out.starts_with("done\nstep 4 of 4:")) << done.out;
}

TEST(Status, ShowsRanksThatAreProcesses) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), long_run(1), {}, mpirun(2));
  await_steps(scratch, 2, 2, program);
  const pid_t late = process_of_rank(program.pid(), 1);
  ASSERT_GT(late, 0);
  EXPECT_EQ(read_pulse(scratch / "run").at(1).process, late);
  kill(late, SIGKILL);
  EXPECT_NE(program.wait().code, 0);
  const Result killed = status_of(scratch);
  EXPECT_EQ(killed.code, 5) << killed.out;
  EXPECT_TRUE(contains(killed.out, "gone without a word")) << killed.out;
  remove_pulse(scratch / "run");
  EXPECT_EQ(status_of(scratch).code, 4);
}

TEST(Status, RefusesWhatIsNoRun) {
  const Scratch scratch;
  const Result none = status_of(scratch);
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "run does not exist; expected a run's directory")) << none.err;
}

}  // namespace
}  // namespace ashlar::integration
