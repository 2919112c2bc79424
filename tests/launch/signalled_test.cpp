// Signals that come to agents and ranks alike, and what a new leader writes about the lost one.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/agent.h"
#include "ashlar/launch/launcher.h"
#include "ashlar/launch/leader.h"
#include "ashlar/launch/node_agent.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using testing_support::TemporaryDirectory;

constexpr int kTurn_us = 2000;

// Comes to the agent as a rank of attempt 1 does, has its parent signalled, and writes down the
// number of the signal that the agent sends.
[[noreturn]] void be_a_rank(const std::string& launch, const std::string& socket) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  while (access((launch + "/ranks/1").c_str(), F_OK) != 0) usleep(kTurn_us);
  setenv(kAgentVariable, socket.c_str(), 1);
  setenv(kEpochVariable, "1", 1);
  setenv(kAttemptVariable, "1", 1);
  tell_agent({.host = "here"});
  kill(getppid(), SIGTERM);
  const timespec patience{20, 0};
  const int came = sigtimedwait(&signals, nullptr, &patience);
  write_text(*posix_files(), launch + "/came", std::to_string(came));
  _exit(0);
}

// A rank that Slurm has sent SIGTERM would end without a save at the second one.
TEST(NodeAgent, PassesAWishToStopOnByAnotherSignal) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  Log log([](std::string_view) {});
  const std::string run = directory.path(), launch = join(run, "launch");
  files->make_directories(launch);
  const std::string socket = EpochFiles(*files, launch).agent_socket();
  const pid_t rank = fork();
  if (rank == 0) be_a_rank(launch, socket);
  const std::string script = "while [ ! -e " + launch + "/came ]; do sleep 0.01; done; exit 27";
  const auto lead = [&](int64_t epoch, int) {
    FleetSpec fleet{.epoch = epoch, .directory = launch};
    fleet.limits.preflight = false;
    fleet.starter = [](const auto&, int) { return std::vector<std::string>{"/bin/sh", "-c"}; };
    Leader leader(fleet, *files, log);
    LaunchPlan plan;
    plan.run_directory = run;
    plan.checkpoints = join(run, "checkpoints");
    plan.command = [&](std::optional<int64_t>, double) { return AttemptCommand{{script}}; };
    plan.fleet = &leader;
    return run_launch(plan, *files, log).exit_code;
  };
  EXPECT_EQ(run_agent({.run_directory = run, .node = "here", .lead = lead}, *files, log), 27);
  kill(rank, SIGKILL);
  ASSERT_EQ(waitpid(rank, nullptr, 0), rank);
  EXPECT_EQ(read_text(*files, launch + "/came"), std::to_string(SIGUSR1));
}

TEST(Launcher, GivesTheLossOfALeaderTheNumberOfItsAttempt) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  Log log([](std::string_view) {});
  const std::string run = directory.path(), launch = join(run, "launch");
  files->make_directories(join(launch, "ranks/3"));
  EpochFiles epochs(*files, launch);
  for (const int64_t epoch : {1, 2}) ASSERT_TRUE(epochs.claim(epoch, "17"));
  Leader leader({.epoch = 2, .directory = launch, .job = "17"}, *files, log);
  LaunchPlan plan;
  plan.run_directory = run;
  plan.checkpoints = join(run, "checkpoints");
  plan.limits.wait_nodes_s = 0;
  plan.fleet = &leader;
  EXPECT_EQ(run_launch(plan, *files, log).exit_code, kSpentExitCode) << "it has no agents";
  EXPECT_NE(read_text(*files, join(launch, "log")).find(" 3 launcher: fault 1: the leader of"),
            std::string::npos);
  const std::string events = read_text(*files, join(launch, "events.jsonl"));
  EXPECT_NE(events.find("\"attempt\":3,\"event\":\"fault\""), std::string::npos) << events;
}

}  // namespace
}  // namespace ashlar::launch
