#include "ashlar/launch/watch.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "ashlar/core/clock.h"
#include "ashlar/core/process.h"
#include "ashlar/core/stack_note.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using testing_support::TemporaryDirectory;

// Two ranks of this process in the backward pass after their first step.
struct TwoRanks {
  TwoRanks() {
    for (PulseWriter* rank : {&zero, &one}) {
      rank->set_step(3);
      rank->step_ended(4);
      rank->add_group(1, "dp", 2);
      rank->enter(PulsePlace::kBackward, 12, 0);
    }
  }
  static void wait(PulseWriter& rank, int64_t number) {
    rank.waits_for(
        rank.post({.group = 0, .number = number, .op = "reduce_scatter", .label = "grads"}));
  }
  // Looks until there is a fault, for 20 s at most.
  static Watch::Sight look(Watch& watch) {
    watch.begin(0);
    Watch::Sight sight;
    for (const auto begin = Clock::now(); !sight.fault && seconds_since(begin) < 20;)
      sight = watch.look({{0, getpid()}, {1, getpid()}}, 0);
    return sight;
  }

  const TemporaryDirectory run;
  PulseWriter zero{run.path(), {0, 2}}, one{run.path(), {1, 2}};
  Log log{[](std::string_view) {}};
};

TEST(Watch, NamesTheRankThatDoesNotCome) {
  TwoRanks ranks;
  TwoRanks::wait(ranks.zero, 7);
  Watch watch(ranks.run.path(), 0.05, ranks.log);
  const auto begin = Clock::now();
  const Watch::Sight sight = TwoRanks::look(watch);
  ASSERT_TRUE(sight.fault);
  EXPECT_GE(seconds_since(begin), 0.04);
  EXPECT_EQ(sight.fault->kind, EvidenceKind::kMissing);
  EXPECT_EQ(sight.fault->rank, 1);
  EXPECT_TRUE(sight.fault->text.starts_with("rank 1 did not come to reduce_scatter 'grads'"))
      << sight.fault->text;
  EXPECT_NE(sight.fault->text.find("backward of block 12"), std::string::npos);
  EXPECT_NE(sight.fault->text.find("rank 1 is in state "), std::string::npos);
  EXPECT_TRUE(watch.look({{0, 1}}, 0).pages.empty()) << "pages of other processes are not read";
}

// Other programs take the processor: a rank without it is not in a hang.
TEST(Watch, LeavesOutTheTimeWithoutAProcessor) {
  const TemporaryDirectory run;
  PulseWriter rank(run.path(), {0, 1});
  rank.set_step(3);
  rank.step_ended(4);
  rank.enter(PulsePlace::kUpdate);
  Log log([](std::string_view) {});
  bool starves = true;
  const int64_t begin_ns = pulse_now_ns();
  int64_t queued_ns = 0;
  Watch watch(run.path(), 0.05, log, 0, [&](int64_t) -> QueueTimes {
    if (starves) queued_ns = pulse_now_ns() - begin_ns;
    return {{1, 7}, {2, 5'000'000'000 + queued_ns}, {3, 7}};
  });
  watch.begin(0);
  const std::map<int, pid_t> ranks{{0, getpid()}};
  auto begin = Clock::now();
  while (seconds_since(begin) < 0.2) ASSERT_FALSE(watch.look(ranks, 0).fault);
  starves = false;
  begin = Clock::now();
  Watch::Sight sight;
  while (!sight.fault && seconds_since(begin) < 20) sight = watch.look(ranks, 0);
  ASSERT_TRUE(sight.fault);
  EXPECT_EQ(sight.fault->kind, EvidenceKind::kSilent);
}

// Rank 0 polls for rank 1, which does not come, on a machine that is too small for both.
TEST(Watch, NamesARankThatOthersStarveFor) {
  TwoRanks ranks;
  TwoRanks::wait(ranks.zero, 7);
  int calls = 0;
  Watch watch(ranks.run.path(), 0.05, ranks.log, 0, [&](int64_t) {  // of both: they are one process
    ++calls;
    return QueueTimes{{1, 7}};
  });
  const Watch::Sight sight = TwoRanks::look(watch);
  ASSERT_TRUE(sight.fault);
  EXPECT_EQ(sight.fault->rank, 1);
  EXPECT_LE(calls, 2) << "early in the silence and at its limit, for the rank that others wait for";
}

// Rank 1 polls for rank 0, whose thread is held: in the operation before, which rank 1 has ended,
// or in the one to which both have come.  The time for which threads wait for a CPU does not count.
TEST(Watch, NamesAHangInAnOperationThoughTheMachineIsBusy) {
  for (const bool ended : {true, false}) {
    TwoRanks ranks;
    TwoRanks::wait(ranks.zero, 285);
    const int64_t entry =
        ranks.one.post({.group = 0, .number = 285, .op = "reduce_scatter", .label = "grads"});
    ranks.one.waits_for(entry);
    if (ended) {
      ranks.one.ended(entry);
      TwoRanks::wait(ranks.one, 286);
    }
    int64_t queued_ns = 0;
    Watch watch(ranks.run.path(), 0.05, ranks.log, 0, [&](int64_t) -> QueueTimes {
      return {{1, queued_ns += 1'000'000'000}};
    });
    const Watch::Sight sight = TwoRanks::look(watch);
    ASSERT_TRUE(sight.fault);
    EXPECT_EQ(sight.fault->kind, EvidenceKind::kStuck);
  }
}

TEST(Watch, ReadsTheQueueTimesOfThisProcess) {
  const QueueTimes times = queue_times_of(getpid());
  if (times.empty()) GTEST_SKIP() << "the kernel has no schedstat";
  EXPECT_TRUE(times.contains(gettid()));
  for (const auto& [thread, queued_ns] : queue_times_of(getpid()))
    if (const auto before = times.find(thread); before != times.end()) {
      EXPECT_GE(queued_ns, before->second);
    }
}

TEST(Watch, AsksTheSilentRankForItsStack) {
  const TemporaryDirectory run;
  answer_stack_signals(pulse_directory(run.path()));
  PulseWriter zero(run.path(), {0, 2, 1});
  zero.step_ended(4);
  zero.enter(PulsePlace::kBackward, 12, 0);
  zero.add_group(1, "dp", 2);
  zero.waits_for(zero.post({.group = 0, .number = 7, .op = "reduce", .label = "grads"}));
  std::atomic<bool> ready = false;
  std::thread silent([&] {
    PulseWriter one(run.path(), {1, 2, 1});
    one.step_ended(4);
    one.enter(PulsePlace::kBackward, 12, 0);
    one.add_group(1, "dp", 2);
    ready = true;
    const timespec day{86'400, 0};
    nanosleep(&day, nullptr);  // the signal ends it
  });
  while (!ready) std::this_thread::yield();
  Log log([](std::string_view) {});
  Watch watch(run.path(), 0.05, log);
  watch.begin(0);
  const auto begin = Clock::now();
  Watch::Sight sight;
  while (!sight.fault && seconds_since(begin) < 20)
    sight = watch.look({{0, getpid()}, {1, getpid()}}, 0);
  pthread_kill(silent.native_handle(), SIGUSR2);  // if nobody has asked
  silent.join();
  signal(SIGUSR2, SIG_DFL);
  ASSERT_TRUE(sight.fault);
  const std::string& text = sight.fault->text;
  const size_t stack = text.find("rank 1 is in state S");
  EXPECT_NE(text.find("; stack: ", stack), text.npos) << text;
  EXPECT_NE(text.find("nanosleep", stack), text.npos) << text;
}

// A rank that saves gives no sign of its own; the disk may take minutes.
TEST(Watch, WaitsForFiles) {
  const TemporaryDirectory run;
  PulseWriter rank(run.path(), {0, 1});
  rank.set_step(3);
  rank.step_ended(4);
  rank.enter(PulsePlace::kSaveWait);
  Log log([](std::string_view) {});
  Watch watch(run.path(), 0.05, log);
  watch.begin(0);
  const auto begin = Clock::now();
  while (seconds_since(begin) < 0.2) ASSERT_FALSE(watch.look({{0, getpid()}}, 0).fault);
}

// The kernel is asked about ranks whose pages stand; a page is seen until its writer ends.
TEST(Watch, ReadsHeadsOfPagesThatStayMapped) {
  const TemporaryDirectory run;
  auto zero = std::make_unique<PulseWriter>(run.path(), PulseRank{0, 2});
  PulseWriter one(run.path(), {1, 2});
  Log log([](std::string_view) {});
  Watch watch(run.path(), 10, log);
  watch.begin(0);
  const std::map<int, pid_t> ranks{{0, getpid()}};
  for (PulseWriter* rank : {zero.get(), &one}) rank->add_group(1, "dp", 2);
  one.waits_for(one.post({.group = 0, .number = 7, .op = "reduce_scatter", .label = "grads"}));
  zero->enter(PulsePlace::kForward, 3, 0);
  const Watch::Finds finds = watch.find(ranks, 0);
  EXPECT_TRUE(finds.states.empty()) << "the page of rank 0 has just changed";
  ASSERT_EQ(finds.pages.size(), 2u);
  EXPECT_EQ(finds.pages.at(1).groups.size(), 1u) << "a report has whole pages";

  std::filesystem::remove_all(pulse_directory(run.path()));
  zero->enter(PulsePlace::kBackward, 3, 0);
  std::map<int, PulsePage> pages = watch.look(ranks, 0).pages;
  ASSERT_EQ(pages.size(), 2u) << "files that somebody removed";
  EXPECT_EQ(pages.at(0).place, PulsePlace::kBackward);
  EXPECT_TRUE(pages.at(1).groups.empty());
  ASSERT_TRUE(pages.at(1).awaited());
  EXPECT_EQ(pages.at(1).awaited()->label, "grads");

  zero.reset();
  pages = watch.look(ranks, 0).pages;
  EXPECT_EQ(pages.size(), 1u);
  EXPECT_FALSE(pages.contains(0));
}

// Without pages, lines are the only sign of life.
TEST(Watch, CountsLinesWhereThereIsNoPulse) {
  const TemporaryDirectory run;
  Log log([](std::string_view) {});
  Watch watch(run.path(), 10, log);
  watch.begin(0);
  for (double now = 0; now < 299; ++now) ASSERT_FALSE(watch.look({}, now).fault) << now;
  watch.hear(299);
  for (double now = 299; now < 598; ++now) ASSERT_FALSE(watch.look({}, now).fault) << now;
  const auto fault = watch.look({}, 599.5).fault;
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, EvidenceKind::kSilent);
}

// A process that gets no processor cannot end, and its pidfd does not tell.
TEST(Watch, NamesAKilledProcessThatCannotEnd) {
  cpu_set_t before, one;
  CPU_ZERO(&one);
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // and so of the child
  const pid_t child = fork();
  if (child == 0) {
    const sched_param lowest{};
    sched_setscheduler(0, SCHED_IDLE, &lowest);
    for (std::atomic<int64_t> turns = 0;; ++turns) {
    }
  }
  while (sched_getscheduler(child) != SCHED_IDLE) std::this_thread::yield();
  const TemporaryDirectory run;
  Log log([](std::string_view) {});
  Watch watch(run.path(), 10, log);
  watch.begin(0);
  const auto before_fault = watch.look({{5, child}}, 1).fault;
  kill(child, SIGKILL);
  const auto fault = watch.look({{5, child}}, 2).fault;
  sched_setaffinity(0, sizeof before, &before);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(before_fault);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, EvidenceKind::kSignal);
  EXPECT_EQ(fault->value, SIGKILL);
  EXPECT_EQ(fault->rank, 5);
}

TEST(Watch, NamesASuspendedProcess) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const TemporaryDirectory run;
  Log log([](std::string_view) {});
  Watch watch(run.path(), 10, log);
  watch.begin(0);
  const std::map<int, pid_t> ranks{{5, child}};
  EXPECT_FALSE(watch.look(ranks, 0).fault);
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_FALSE(watch.look(ranks, 1).fault);
  EXPECT_FALSE(watch.look(ranks, 11).fault) << "the launcher itself did not run for 10 s";
  EXPECT_FALSE(watch.look(ranks, 12).fault);
  EXPECT_FALSE(watch.look(ranks, 13).fault);
  const auto fault = watch.look(ranks, 14.1).fault;
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, EvidenceKind::kSuspended);
  EXPECT_EQ(fault->rank, 5);
}

}  // namespace
}  // namespace ashlar::launch
