// Verdicts about machines that something is wrong with: a program beside, a slow rank, a slow disk.
// Each is provoked, and has to be named.  ASHLAR_VERDICT_TRIALS=20 (`scripts/campaign verdicts`)
// provokes it so often, of which 1 in 20 may fail, and also asks whether a calm machine is healthy
// every time.  Otherwise one of three trials has to succeed; where other programs disturb all
// three, the test is skipped.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

using namespace std::chrono_literals;

constexpr int kDisturbedCode = 7, kBadCode = 4;

int trials() {
  const char* text = std::getenv("ASHLAR_VERDICT_TRIALS");
  return text ? std::stoi(text) : 0;
}

struct Trial {
  bool named = false, disturbed = false;
  std::string said;
};

using MakeTrial = std::function<Trial(int number)>;

void expect_named_once(const MakeTrial& trial) {
  bool disturbed = true;
  std::string said;
  for (int number = 0; number < 3; ++number) {
    const Trial result = trial(number);
    if (result.named) return;
    disturbed = disturbed && result.disturbed;
    said += result.said + "\n";
  }
  if (disturbed) GTEST_SKIP() << "other programs took the machine in every trial";
  ADD_FAILURE() << said;
}

// Counts trials that other programs did not disturb, of which some may fail.
void expect_named_often(const std::string& what, int may_fail_of_20, const MakeTrial& trial) {
  int named = 0, judged = 0, disturbed = 0;
  std::string failed;
  while (judged < trials() && disturbed < 3 * trials()) {
    const Trial result = trial(judged + disturbed);
    if (result.disturbed) {
      ++disturbed;
      std::this_thread::sleep_for(3s);
      continue;
    }
    ++judged;
    named += result.named;
    if (!result.named) failed += result.said + "\n";
  }
  fmt::print("verdicts: {}: {} of {}; other programs disturbed {} more\n", what, named, judged,
             disturbed);
  EXPECT_EQ(judged, trials()) << "other programs took the machine";
  EXPECT_GE(20 * named, (20 - may_fail_of_20) * judged) << failed;
}

void expect_named(const std::string& what, const MakeTrial& trial) {
  trials() > 0 ? expect_named_often(what, 1, trial) : expect_named_once(trial);
}

// A process that computes on one CPU, under a name of its own.
class Neighbour {
 public:
  explicit Neighbour(int cpu) : pid_(fork()) {
    if (pid_ > 0) return;
    prctl(PR_SET_NAME, "loud-neighbour");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(size_t(cpu), &set);
    sched_setaffinity(0, sizeof set, &set);
    for (std::atomic<uint64_t> i = 0;;) ++i;
  }
  ~Neighbour() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

int some_cpu() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  for (int cpu = CPU_SETSIZE - 1; cpu > 0; --cpu)
    if (CPU_ISSET(size_t(cpu), &set)) return cpu;
  return 0;
}

TEST(Verdicts, ABusyNeighbourIsNamed) {
  const Scratch scratch;
  expect_named("a busy neighbour is named", [&](int) {
    const Neighbour neighbour(some_cpu());
    const Result result = run(scratch, {"bench", "smoke", "--ranks", "2"});
    return Trial{result.code == kDisturbedCode && contains(result.out, "loud-neighbour"), false,
                 result.out + result.err};
  });
}

// One of four processes is stopped three milliseconds in four.
TEST(Verdicts, ASlowRankIsNamed) {
  const Scratch scratch;
  expect_named("a slow rank is named", [&](int number) {
    const int slow = number % 4;
    Program program(scratch.path(), {"bench", "smoke", "--threads", "1"}, {}, mpirun(4));
    pid_t rank = 0;
    while (program.running()) {
      if (rank == 0) rank = process_of_rank(program.pid(), slow);
      if (rank > 0) kill(rank, SIGSTOP);
      std::this_thread::sleep_for(3ms);
      if (rank > 0) kill(rank, SIGCONT);
      std::this_thread::sleep_for(rank > 0 ? 1ms : 20ms);
    }
    const Result result = program.wait();
    const int bad = count_of(result.out, "\nbad: ");
    int own = 0;  // those of the slow rank
    for (size_t at = 0; (at = result.out.find("\nbad: ", at)) != std::string::npos; ++at)
      own += contains(result.out.substr(at, result.out.find('\n', at + 1) - at),
                      fmt::format("rank {} on ", slow));
    return Trial{result.code == kBadCode && own > 0 && own == bad, result.code == kDisturbedCode,
                 result.out + result.err};
  });
}

// The disk is fast when the profile is made, and slow afterwards.
TEST(Verdicts, ASlowDiskIsNamed) {
  const Scratch scratch;
  const std::vector<std::string> args = {"bench", "storage", "--quick", "--profile", "disk.toml"};
  expect_named("a slow disk is named", [&](int) {
    std::filesystem::remove(scratch / "disk.toml");
    const Result calm = run(scratch, args);
    if (calm.code == kDisturbedCode) return Trial{false, true, calm.out};
    const Result slow = run(scratch, args, [] {
      setenv("LD_PRELOAD", ASHLAR_SLOW_DISK, 1);
      setenv("ASHLAR_SLOW_DISK_MBPS", "50", 1);
      setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    });
    return Trial{slow.code == kBadCode && contains(slow.out, "bad: disk sequential write"),
                 slow.code == kDisturbedCode, slow.out + slow.err};
  });
}

TEST(Verdicts, ACalmMachineIsHealthy) {
  if (trials() == 0) GTEST_SKIP() << "ASHLAR_VERDICT_TRIALS is not set: needs a calm machine";
  const Scratch scratch;
  expect_named_often("a calm machine is healthy", 0, [&](int) {
    const Result result = run(scratch, {"bench", "smoke", "--ranks", "2"});
    // `low` is the worst that may be said: a neighbour on the same physical core is out of sight.
    return Trial{result.code == 0, result.code == kDisturbedCode, result.out + result.err};
  });
}

}  // namespace
}  // namespace ashlar::integration
