#include "ashlar/launch/attempt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/launch/by_hand.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using ashlar::testing_support::TemporaryDirectory;

AttemptCommand shell(const std::string& script, StarterKind starter = StarterKind::kThreads) {
  return {{"/bin/sh", "-c", script}, starter, {}};
}

// All that an attempt says until it ends, or until `enough`.
template <typename F>
Attempt::News follow(Attempt& attempt, F&& enough) {
  Attempt::News all;
  const auto begin = Clock::now();
  while (!all.ended && seconds_since(begin) < 20 && !enough(all)) {
    Attempt::News news = attempt.wait(0.05);
    all.lines.insert(all.lines.end(), news.lines.begin(), news.lines.end());
    all.joined.insert(all.joined.end(), news.joined.begin(), news.joined.end());
    all.gone.insert(all.gone.end(), news.gone.begin(), news.gone.end());
    all.ended = news.ended;
  }
  return all;
}
Attempt::News follow(Attempt& attempt) {
  return follow(attempt, [](const Attempt::News&) { return false; });
}

void fence(Attempt& attempt) {
  const auto begin = Clock::now();
  while (!attempt.fence() && seconds_since(begin) < 20) usleep(1000);
  EXPECT_TRUE(attempt.fence());
}

bool lives(pid_t pid) {
  return kill(pid, 0) == 0;
}

TEST(Attempt, EndsWithACodeAndTheLastError) {
  RankSocket socket;
  LocalAttempt attempt(shell("echo one; echo 'ashlar: text.bin: too short' >&2; exit 24"), socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->kind, EvidenceKind::kExit);
  EXPECT_EQ(news.ended->value, 24);
  EXPECT_EQ(news.ended->text, "text.bin: too short");
  ASSERT_EQ(news.lines.size(), 2u);
  EXPECT_EQ(news.lines[0].text, "one");
}

TEST(Attempt, EndsByASignal) {
  RankSocket socket;
  LocalAttempt attempt(shell("kill -9 $$"), socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->kind, EvidenceKind::kSignal);
  EXPECT_EQ(news.ended->value, SIGKILL);
}

// The words are those of Open MPI 4.1.
TEST(Attempt, KnowsTheRankThatMpirunBlames) {
  RankSocket socket;
  LocalAttempt attempt(
      shell("echo '[1,0]<stderr>:ashlar: TERM: saves'\n"
            "echo 'mpirun noticed that process rank 3 with PID 0 on node n exited on signal 9.'\n"
            "exit 137",
            StarterKind::kMpirun),
      socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->kind, EvidenceKind::kSignal);
  EXPECT_EQ(news.ended->value, SIGKILL);
  EXPECT_EQ(news.ended->rank, 3);
  EXPECT_EQ(news.lines[0].rank, 0);
  EXPECT_EQ(news.lines[1].rank, -1);
}

// mpirun blames a rank that it has ended itself.
TEST(Attempt, TakesNoAnswerToASignalForAnError) {
  RankSocket socket;
  LocalAttempt attempt(
      shell("echo '[1,0]<stderr>:ashlar: rank 0 and rank 1 do not call the same'\n"
            "echo '[1,1]<stderr>:ashlar: TERM: saves and stops after this step, in about 1 s; "
            "again: without saving'\n"
            "echo 'mpirun noticed that process rank 1 with PID 0 on node n exited'\n"
            "exit 30",
            StarterKind::kMpirun),
      socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->text, "rank 0 and rank 1 do not call the same");
  EXPECT_EQ(classify(std::span(&*news.ended, 1)).fault, FaultClass::kMismatch);
}

TEST(Attempt, NamesTheRankWhoseBitsAreWrong) {
  struct Case {
    std::string error;
    int code, rank;
  };
  for (const auto& [error, code, rank] :
       {Case{"rank 2 computed wrong gradients", 29, 2},
        Case{"ranks 2, 3 compute different gradients", 29, -1},
        Case{"no thread can be started", 29, 0}, Case{"rank 2 did not come", 30, 0}}) {
    RankSocket socket;
    LocalAttempt attempt(
        shell("echo '[1,0]<stderr>:ashlar: " + error +
                  "'\n"
                  "echo 'mpirun noticed that process rank 0 with PID 0 on node n exited'\n"
                  "exit " +
                  std::to_string(code),
              StarterKind::kMpirun),
        socket);
    const Attempt::News news = follow(attempt);
    ASSERT_TRUE(news.ended);
    EXPECT_EQ(news.ended->rank, rank);
  }
}

// The words are those of Slurm 22.05.  The second task ended because the first one did.
TEST(Attempt, KnowsTheRankThatEndedFirstUnderSrun) {
  RankSocket socket;
  LocalAttempt attempt(shell("echo '1: ashlar: text.bin: too short'\n"
                             "echo 'srun: error: v2: task 1: Exited with exit code 24'\n"
                             "echo 'srun: error: v1: tasks 0,2: Killed'\n"
                             "exit 137",
                             StarterKind::kSrun),
                       socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->kind, EvidenceKind::kExit);
  EXPECT_EQ(news.ended->value, 24);
  EXPECT_EQ(news.ended->rank, 1);
  EXPECT_EQ(news.ended->text, "text.bin: too short");
  const std::optional<BlamedRank> killed = blamed_rank("srun: error: v1: tasks 2-3: Killed");
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->rank, 2);
  EXPECT_EQ(killed->signal, SIGKILL);
}

// Slurm ends the whole step; the ranks that it kills are not to blame.
TEST(Attempt, KnowsTheNodeThatSlurmGivesUp) {
  RankSocket socket;
  LocalAttempt attempt(shell("echo 'srun: error: Node failure on v4'\n"
                             "echo 'srun: error: v3: task 0: Killed'\n"
                             "exit 137",
                             StarterKind::kSrun),
                       socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->kind, EvidenceKind::kNodeLost);
  EXPECT_NE(news.ended->text.find("node v4"), std::string::npos) << news.ended->text;
}

TEST(Attempt, SaysWhyAProgramCannotBeStarted) {
  RankSocket socket;
  LocalAttempt attempt({{"/no/such/program"}, StarterKind::kThreads, {}}, socket);
  const Attempt::News news = follow(attempt);
  ASSERT_TRUE(news.ended);
  EXPECT_EQ(news.ended->value, 127);
  EXPECT_NE(news.ended->text.find("/no/such/program"), std::string::npos);
}

// Also processes whose parents have died, and those that pass over SIGTERM.
TEST(Attempt, FenceLeavesNothingBehind) {
  RankSocket socket;
  LocalAttempt attempt(shell("trap '' TERM; (sleep 100 & echo $!); sleep 100 & echo $!; wait"),
                       socket);
  const Attempt::News news =
      follow(attempt, [](const auto& seen) { return seen.lines.size() == 2; });
  ASSERT_EQ(news.lines.size(), 2u);
  attempt.terminate();
  fence(attempt);
  for (const OutputLine& line : news.lines) EXPECT_FALSE(lives(std::stoi(line.text)));
}

// mpirun would kill the rank at once on SIGTERM, before it can save.
TEST(Attempt, RanksOfAKilledLauncherSave) {
  const TemporaryDirectory root;
  const pid_t launcher = fork();
  if (launcher == 0) {
    AttemptCommand command{.words = mpirun_words({}, 1), .starter = StarterKind::kMpirun};
    command.words.insert(command.words.end(),
                         {"sh", "-c",
                          "trap 'sleep 0.1; touch saved; exit 27' USR1; touch trains; "
                          "while :; do sleep 0.02; done"});
    std::filesystem::current_path(root.path());
    RankSocket socket;
    LocalAttempt attempt(command, socket);
    for (;;) attempt.wait(1);
  }
  const auto appears = [&](const char* name) {
    for (int i = 0; i < 2000 && !std::filesystem::exists(root / name); ++i) usleep(10'000);
    return std::filesystem::exists(root / name);
  };
  EXPECT_TRUE(appears("trains"));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(appears("saved"));
}

TEST(Attempt, HidesTheLaunchersOwnJob) {
  EXPECT_TRUE(is_hidden_from_ranks("SLURM_NTASKS=4"));
  EXPECT_TRUE(is_hidden_from_ranks("PMIX_RANK=0"));
  EXPECT_TRUE(is_hidden_from_ranks("OMPI_MCA_orte_ess_node_rank=0"));
  EXPECT_FALSE(is_hidden_from_ranks("OMPI_MCA_btl=self,vader"));
  EXPECT_FALSE(is_hidden_from_ranks("PMIX_MCA_gds=hash"));
  EXPECT_FALSE(is_hidden_from_ranks("PATH=/bin"));
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  RankSocket socket;
  setenv("MORE", "of an outer launcher", 1);
  AttemptCommand command = shell("echo \"$OMPI_COMM_WORLD_SIZE,$MORE\"");
  command.variables = {"MORE=more"};
  LocalAttempt attempt(command, socket);
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("MORE");
  const Attempt::News news = follow(attempt);
  ASSERT_EQ(news.lines.size(), 1u);
  EXPECT_EQ(news.lines[0].text, ",more");
}

// Run by the next test as the process of a rank.
TEST(AttemptChild, DISABLED_Joins) {
  tell_agent({.rank = 2, .num_ranks = 3, .host = "host"});
  pause();
}

TEST(Attempt, WatchesARankThatHasJoined) {
  RankSocket socket;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  AttemptCommand command = shell(self +
                                 " --gtest_also_run_disabled_tests "
                                 "--gtest_filter=AttemptChild.* >/dev/null; sleep 100");
  command.variables = {std::string(kAgentVariable) + "=" + socket.name()};
  LocalAttempt attempt(command, socket);
  Attempt::News news = follow(attempt, [](const auto& seen) { return !seen.joined.empty(); });
  ASSERT_EQ(news.joined, std::vector<int>{2});
  EXPECT_EQ(attempt.host_of(2), "host");
  const pid_t pid = attempt.ranks().at(2);
  ASSERT_TRUE(lives(pid));
  kill(pid, SIGKILL);
  news = follow(attempt, [](const auto& seen) { return !seen.gone.empty(); });
  ASSERT_EQ(news.gone.size(), 1u);
  EXPECT_EQ(news.gone[0].rank, 2);
  EXPECT_TRUE(attempt.ranks().empty());
  fence(attempt);
}

TEST(RankSocket, PassesOverStrangers) {
  EXPECT_THROW(parse_hello("GET / HTTP/1.1"), Error);
  EXPECT_THROW(parse_hello("rank 3 of 2, attempt 1 of epoch 0, started 5, on n07\n"), Error);
  const AgentHello hello = parse_hello(to_line({3, 8, 2, 1, 4711, "n07"}));
  EXPECT_EQ(hello.rank, 3);
  EXPECT_EQ(hello.num_ranks, 8);
  EXPECT_EQ(hello.attempt, 2);
  EXPECT_EQ(hello.epoch, 1);
  EXPECT_EQ(hello.start_ticks, 4711u);
  EXPECT_EQ(hello.host, "n07");
  EXPECT_FALSE(agent_address("/tmp/agent"));
  RankSocket socket;
  EXPECT_FALSE(socket.accept());
}

TEST(OutputLines, BelongToRanks) {
  EXPECT_EQ(parse_tagged("[1,12]<stderr>:step 3").rank, 12);
  EXPECT_EQ(parse_tagged("[1,12]<stdout>:step 3").text, "step 3");
  EXPECT_EQ(parse_tagged("[n07:4711] something").rank, -1);
  EXPECT_EQ(blamed_rank("  Process name: [[25486,1],1]")->rank, 1);
  EXPECT_FALSE(blamed_rank("  Exit code:    2"));
  EXPECT_EQ(parse_labelled(" 3: step 3: done").rank, 3);
  EXPECT_EQ(parse_labelled(" 3: step 3: done").text, "step 3: done");
  EXPECT_EQ(parse_labelled("srun: Job step created").rank, -1);
}

TEST(OutputLines, AreCutFromTheStream) {
  LineCutter cutter;
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  cutter.add("one\ntw", take);
  cutter.add("o\n\nthree", take);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", ""}));
  cutter.finish(take);
  EXPECT_EQ(lines.back(), "three");
  lines.clear();
  cutter.add(std::string(LineCutter::kLongestLine + 5, 'x') + "\n", take);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), LineCutter::kLongestLine);
  EXPECT_EQ(lines[1], "xxxxx");
}

}  // namespace
}  // namespace ashlar::launch
