// The check of a node: how its end is read, and that a child which does not end is ended.
#include "ashlar/launch/preflight.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using testing_support::TemporaryDirectory;

int exited(int code) {
  return code << 8;
}

// As `ashlar bench smoke --json -` prints it, shortened.
std::string smoke_json(bool disturbed, const std::string& verdicts = "") {
  return std::string(R"({"version":"ashlar-bench-1","results":[)") +
         R"({"experiment_name":"all_reduce","value":3.5},)" +
         R"({"experiment_name":"product F32 K 1024","value":0.25,"disturbed":)" +
         (disturbed ? "true" : "false") + R"(},{"experiment_name":"memory copy","value":11.5}],)" +
         R"("verdicts":[)" + verdicts + "]}";
}

TEST(JudgeCheck, KeepsTheRatesOfAHealthyNode) {
  CheckResult result = judge_check(7, {.status = exited(0), .output = smoke_json(false)});
  EXPECT_EQ(result, (CheckResult{7, true, "", 0.25, 11.5}));
  result = judge_check(7, {.status = exited(0), .output = smoke_json(true)});
  EXPECT_EQ(result, (CheckResult{7, true, "", 0, 11.5})) << "that row says nothing";
  result = judge_check(7, {.status = exited(0), .foreign_share = 0.2, .output = smoke_json(false)});
  EXPECT_EQ(result, (CheckResult{7, true, "", 0, 0}));
}

TEST(JudgeCheck, SaysWhyANodeFails) {
  const std::string wrong = R"({"name":"all_gather 64 KiB","verdict":"wrong-data"},)"
                            R"({"name":"memory copy","verdict":"normal"})";
  CheckResult result = judge_check(1, {.status = exited(5), .output = smoke_json(false, wrong)});
  EXPECT_FALSE(result.passed);
  EXPECT_TRUE(result.sure);
  EXPECT_EQ(result.evidence, "its check ended with exit code 5: wrong-data: all_gather 64 KiB");
  result = judge_check(1, {.status = SIGBUS});
  EXPECT_EQ(result.evidence, "its check ended with signal 7");
  result = judge_check(1, {.status = exited(0), .output = "{\"results\":"});
  EXPECT_FALSE(result.passed) << "it was cut off";
  result = judge_check(1, {.status = SIGKILL, .late_s = 15});
  EXPECT_EQ(result.evidence, "its check took more than 15 s");
}

TEST(JudgeCheck, BlamesNobodyOnADisturbedMachine) {
  EXPECT_TRUE(judge_check(1, {.status = exited(7), .output = smoke_json(true)}).passed);
  EXPECT_TRUE(judge_check(1, {.status = exited(6), .foreign_share = 0.5}).passed);
  EXPECT_FALSE(judge_check(1, {.status = exited(6), .foreign_share = 0.01}).passed);
  EXPECT_FALSE(judge_check(1, {.status = exited(5), .foreign_share = 0.5}).passed);
  EXPECT_TRUE(judge_check(1, {.status = SIGKILL, .late_s = 15, .foreign_share = 0.5}).passed);
}

// A program in place of ashlar.
std::string script_in(const TemporaryDirectory& directory, const std::string& text) {
  const std::string path = directory.path().string() + "/check";
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  chmod(path.c_str(), 0700);
  return path;
}

CheckResult result_of(Preflight& check, double now) {
  for (int tries = 0; tries < 500; ++tries, usleep(10'000))
    if (const CheckResult& result = check.look(now); result.number > 0) return result;
  return {};
}

TEST(Preflight, ReadsWhatTheChildPrints) {
  const TemporaryDirectory directory;
  Preflight check(script_in(directory,
                            "[ \"$*\" = 'bench smoke --ranks 3 --quick --budget 3 "
                            "--timeout 4 --json - --allow-independent' ] && "
                            "echo '" +
                                smoke_json(false) + "'"),
                  3);
  EXPECT_EQ(check.look(0).number, 0);
  check.obey({.number = 4}, 0);
  const CheckResult result = result_of(check, 0.1);
  EXPECT_TRUE(result.passed) << result.evidence;
  EXPECT_EQ(result.number, 4);
  check.obey({.number = 4}, 0);
  EXPECT_EQ(check.look(1).number, 4) << "the same order is obeyed once";
}

TEST(Preflight, EndsAChildThatDoesNot) {
  const TemporaryDirectory directory;
  Preflight check(
      script_in(directory, "echo $$ >" + directory.path().string() + "/pid; sleep 1000"), 1);
  check.obey({.number = 1, .thorough = true}, 0);
  pid_t pid = 0;
  for (int tries = 0; pid == 0 && tries < 500; ++tries, usleep(10'000))
    std::ifstream(directory.path() / "pid") >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(check.look(Preflight::kThorough_s - 1).number, 0);
  EXPECT_EQ(check.look(Preflight::kThorough_s + 1).number, 1);
  EXPECT_NE(kill(pid, 0), 0) << "it is gone";
}

}  // namespace
}  // namespace ashlar::launch
