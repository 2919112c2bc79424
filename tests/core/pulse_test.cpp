#include "ashlar/core/pulse.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "tests/support/temporary_directory.h"

namespace ashlar {
namespace {

using testing_support::TemporaryDirectory;

// Runs body in another process, which then kills itself.
void run_and_die(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

std::string page_of(const std::string& run, int rank) {
  return fmt::format("{}/{}.{}", pulse_directory(run), rank, getpid());
}

TEST(Pulse, ReadsWhatARankHasWritten) {
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {.rank = 1, .num_ranks = 2, .attempt = 7, .num_steps = 900});
  const int64_t before = pulse_now_ns();
  writer.set_step(40);
  writer.step_ended(41);
  writer.enter(PulsePlace::kBackward, 12, 3);
  const int dp = writer.add_group(11, "dp", 2), world = writer.add_group(22, "world", 2);
  EXPECT_EQ(writer.add_group(11, "dp", 2), dp);
  const int64_t sum = writer.post({.group = dp,
                                   .lane = 2,
                                   .number = 1842,
                                   .bytes = 4096,
                                   .op = "reduce_scatter",
                                   .label = "gradients"});
  const int64_t end = writer.post({.group = world, .op = "send_receive", .label = "halo"});
  writer.started(sum);
  writer.ended(sum);
  writer.waits_for(end);

  const std::map<int, PulsePage> pages = read_pulse(run.path());
  ASSERT_EQ(pages.size(), 1u);
  const PulsePage& page = pages.at(1);
  EXPECT_EQ(page.num_ranks, 2);
  EXPECT_EQ(page.attempt, 7);
  EXPECT_EQ(page.process, getpid());
  EXPECT_EQ(page.thread, gettid());
  EXPECT_TRUE(is_alive(page));
  EXPECT_EQ(page.step, 41);
  EXPECT_EQ(page.steps_here, 1);
  EXPECT_EQ(page.num_steps, 900);
  EXPECT_EQ(page.place, PulsePlace::kBackward);
  EXPECT_EQ(page.block, 12);
  EXPECT_EQ(page.micro_batch, 3);
  EXPECT_EQ(page.total, 0);
  ASSERT_EQ(page.groups.size(), 2u);
  EXPECT_EQ(page.groups[0].name, "dp");
  EXPECT_EQ(page.groups[0].size, 2);
  EXPECT_EQ(page.groups[0].posted, 1843);
  EXPECT_EQ(page.groups[1].posted, 0);  // its operation has no number
  ASSERT_EQ(page.operations.size(), 2u);
  const PulseOperation& first = page.operations[0];
  EXPECT_EQ(first.op, "reduce_scatter");
  EXPECT_EQ(first.label, "gradients");
  EXPECT_EQ(first.lane, 2);
  EXPECT_EQ(first.number, 1842);
  EXPECT_EQ(first.bytes, 4096);
  EXPECT_FALSE(first.pending());
  EXPECT_LE(before, first.queued_ns);
  EXPECT_LE(first.queued_ns, first.started_ns);
  EXPECT_LE(first.started_ns, first.ended_ns);
  EXPECT_EQ(page.operations[1].number, -1);
  ASSERT_TRUE(page.awaited());
  EXPECT_EQ(page.awaited()->label, "halo");
  EXPECT_LE(page.operations[1].queued_ns, page.waiting_ns);
  writer.waited();
  EXPECT_FALSE(read_pulse(run.path()).at(1).awaited());
}

TEST(Pulse, AHeadHasWhatChangesAndTheOperationThatIsAwaited) {
  const TemporaryDirectory run;
  auto writer = std::make_unique<PulseWriter>(run.path(), PulseRank{0, 2, 1, 40});
  const PulseReader reader(page_of(run.path(), 0));
  writer->add_group(7, "dp", 2);
  writer->post({.group = 0, .number = 0, .op = "all_gather", .label = "weights"});
  const int64_t entry =
      writer->post({.group = 0, .number = 1, .op = "reduce_scatter", .label = "gradients"});
  writer->enter(PulsePlace::kReduce, 3, 1);
  writer->step_ended(12);
  EXPECT_TRUE(reader.head().operations.empty()) << "it waits for none";
  writer->waits_for(entry);
  const PulsePage head = reader.head(), page = reader.page();
  ASSERT_EQ(page.operations.size(), 2u);
  ASSERT_EQ(head.operations.size(), 1u);
  EXPECT_EQ(head.awaited()->label, "gradients");
  EXPECT_EQ(head.step, 12);
  EXPECT_EQ(head.place, PulsePlace::kReduce);
  EXPECT_EQ(head.moved_ns(), page.moved_ns());
  writer->waited();
  EXPECT_EQ(reader.head().awaited(), nullptr);
  const int64_t before_ns = reader.head().changed_ns;
  while (pulse_now_ns() == before_ns) std::this_thread::yield();
  writer->ended(entry);
  EXPECT_EQ(reader.head().changed_ns, before_ns);
  EXPECT_GT(reader.head().moved_ns(), before_ns) << "an operation ended";
  EXPECT_FALSE(reader.has_ended());
  writer.reset();
  EXPECT_TRUE(reader.has_ended());
}

TEST(Pulse, AnEvaluationIsOneWhateverItRuns) {
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {});
  writer.enter(PulsePlace::kEvaluate);
  writer.set_progress(3, 8);
  writer.enter_part(PulsePlace::kForward, 5, 0);
  PulsePage page = read_pulse(run.path()).at(0);
  EXPECT_EQ(page.place, PulsePlace::kEvaluate);
  EXPECT_EQ(page.block, 5);
  EXPECT_EQ(page.done, 3);
  EXPECT_EQ(page.total, 8);
  writer.enter(PulsePlace::kData);
  writer.enter_part(PulsePlace::kForward, 0, 0);
  page = read_pulse(run.path()).at(0);
  EXPECT_EQ(page.place, PulsePlace::kForward);
  EXPECT_EQ(page.total, 0);
}

TEST(Pulse, PageOutlivesItsProcessUntilTheNextStart) {
  const TemporaryDirectory run;
  run_and_die([&] {
    PulseWriter writer(run.path(), {.rank = 5, .num_ranks = 8});
    writer.enter(PulsePlace::kUpdate);
    writer.post({.group = writer.add_group(1, "dp", 8), .op = "barrier", .label = "end"});
    kill(getpid(), SIGKILL);
  });
  const std::map<int, PulsePage> left = read_pulse(run.path());
  ASSERT_EQ(left.size(), 1u);
  EXPECT_FALSE(is_alive(left.at(5)));
  EXPECT_EQ(left.at(5).place, PulsePlace::kUpdate);
  ASSERT_EQ(left.at(5).operations.size(), 1u);
  EXPECT_TRUE(left.at(5).operations[0].pending());
  {
    PulseWriter next(run.path(), {});
    const std::map<int, PulsePage> pages = read_pulse(run.path());
    EXPECT_EQ(pages.size(), 1u);
    EXPECT_TRUE(pages.contains(0));
  }
  EXPECT_FALSE(std::filesystem::exists(pulse_directory(run.path())));
}

TEST(Pulse, RemoveTakesThePagesOfDeadProcessesAlone) {
  const TemporaryDirectory run;
  {
    PulseWriter living(run.path(), {.rank = 0, .num_ranks = 2});
    run_and_die([&] {
      const PulseWriter writer(run.path(), {.rank = 1, .num_ranks = 2});
      kill(getpid(), SIGKILL);
    });
    EXPECT_EQ(read_pulse(run.path()).size(), 2u);
    remove_pulse(run.path());
    EXPECT_EQ(read_pulse(run.path()).size(), 1u);
  }
  remove_pulse(run.path());  // nothing is there any more
}

TEST(Pulse, ARankIsItsLivingProcess) {
  const TemporaryDirectory run;
  const PulseWriter living(run.path(), {.attempt = 1});
  run_and_die([&] {
    const PulseWriter later(run.path(), {.attempt = 2});
    kill(getpid(), SIGKILL);
  });
  EXPECT_EQ(read_pulse(run.path()).at(0).attempt, 1);
}

// Every number of an operation follows from its order, and its label is as long as can be.
TEST(Pulse, NoOperationIsReadInPart) {
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {});
  const int group = writer.add_group(1, "dp", 2);
  std::atomic<bool> stop{false};
  std::thread rank([&] {
    for (int64_t i = 0; !stop; ++i) {
      const std::string label(48, char('a' + i % 26));
      const int64_t entry =
          writer.post({.group = group, .number = i, .bytes = 3 * i, .op = "op", .label = label});
      writer.started(entry);
      writer.ended(entry);
    }
  });
  int64_t num_read = 0, latest = 0;
  while (num_read <= 300 || latest <= PulseLayout::kNumEntries)  // until entries were overwritten
    for (const PulseOperation& operation : PulseReader(page_of(run.path(), 0)).page().operations) {
      EXPECT_EQ(operation.number, operation.order);
      EXPECT_EQ(operation.bytes, 3 * operation.number);
      EXPECT_EQ(operation.label, std::string(48, char('a' + operation.number % 26)));
      ++num_read;
      latest = operation.order;
    }
  stop = true;
  rank.join();
}

TEST(Pulse, AnEntryThatAKillLeftHalfWrittenIsNoOperation) {
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {});
  const int group = writer.add_group(1, "dp", 2);
  for (int64_t i = 0; i < 3; ++i) writer.post({.group = group, .number = i, .op = "barrier"});
  const int file = open(page_of(run.path(), 0).c_str(), O_RDWR);
  void* const memory =
      mmap(nullptr, sizeof(PulseLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ++static_cast<PulseLayout*>(memory)->entries[1].version;
  const PulsePage page = PulseReader(page_of(run.path(), 0)).page();
  munmap(memory, sizeof(PulseLayout));
  close(file);
  ASSERT_EQ(page.operations.size(), 2u);
  EXPECT_EQ(page.operations[0].number, 0);
  EXPECT_EQ(page.operations[1].number, 2);
}

TEST(Pulse, KeepsOperationsThatHaveNotEnded) {
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {});
  const int group = writer.add_group(1, "dp", 2);
  writer.post({.group = group, .number = 0, .op = "all_gather", .label = "hangs"});
  for (int64_t i = 1; i <= 1000; ++i) writer.ended(writer.post({.group = group, .number = i}));
  PulsePage page = read_pulse(run.path()).at(0);
  ASSERT_EQ(page.operations.size(), size_t{PulseLayout::kNumEntries});
  EXPECT_EQ(page.operations.front().label, "hangs");
  EXPECT_EQ(page.operations[1].order, 1001 - (PulseLayout::kNumEntries - 1));
  EXPECT_EQ(page.operations.back().order, 1000);

  for (int i = 1; i < PulseLayout::kNumEntries; ++i)
    EXPECT_GE(writer.post({.group = group, .number = 1000 + i}), 0);
  const int64_t none = writer.post({.group = group, .number = 5000});
  EXPECT_EQ(none, -1);
  writer.started(none);
  writer.ended(none);
  page = read_pulse(run.path()).at(0);
  EXPECT_EQ(page.operations.back().number, 1000 + PulseLayout::kNumEntries - 1);
  EXPECT_EQ(page.groups[0].posted, 5001);  // it has come to the operation all the same
}

TEST(Pulse, GroupsWithoutRoomHaveNoOperations) {
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {});
  for (int i = 0; i < PulseLayout::kNumGroups; ++i)
    EXPECT_EQ(writer.add_group(uint64_t(i + 1), "g", 2), i);
  const int more = writer.add_group(1000, "more", 2);
  EXPECT_EQ(more, -1);
  EXPECT_EQ(writer.post({.group = more, .number = 1}), -1);
  EXPECT_TRUE(read_pulse(run.path()).at(0).operations.empty());
}

TEST(Pulse, OtherFilesAreNoPages) {
  const TemporaryDirectory run;
  const PulseWriter writer(run.path(), {});
  const std::string directory = pulse_directory(run.path());
  std::ofstream(directory + "/1.1") << "short";
  std::ofstream(directory + "/2.1") << std::string(sizeof(PulseLayout), 'x');
  std::ofstream(directory + "/notes") << "none";
  EXPECT_EQ(read_pulse(run.path()).size(), 1u);
  for (const char* name : {"/1.1", "/2.1"}) try {
      PulseReader(directory + name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    }
  for (const char* name : {"/1.1", "/2.1", "/notes"}) unlink((directory + name).c_str());
}

TEST(Pulse, RefusesAPlaceThatIsNoDirectory) {
  const TemporaryDirectory run;
  const std::string directory = pulse_directory(run.path());
  std::ofstream(directory) << "in the way";
  EXPECT_THROW(PulseWriter(run.path(), {}), Error);
  EXPECT_THROW(read_pulse(run.path()), Error);
  unlink(directory.c_str());
  EXPECT_TRUE(read_pulse(run.path()).empty());
}

TEST(Pulse, DirectoryIsTheSameForEveryNameOfTheRun) {
  const TemporaryDirectory run;
  const std::string link = run / "link";
  std::filesystem::create_directory_symlink(run.path(), link);
  const std::string directory = pulse_directory(run.path());
  EXPECT_EQ(pulse_directory(run.path().string() + "/"), directory);
  EXPECT_EQ(pulse_directory(run / "x/.."), directory);
  EXPECT_EQ(pulse_directory(link), directory);
  EXPECT_NE(pulse_directory(run / "x"), directory);
  EXPECT_EQ(pulse_directory("no/such/run"),
            pulse_directory(std::filesystem::current_path() / "no/such/run"));
}

// The fastest of many batches.  The bounds leave room for this program, which is hardly optimized,
// and for a machine that others use: compiled as the trainer is, a place takes 9 ns, an operation
// 30 when it is queued, and 8 when it starts and ends.
double fastest_ns(const std::function<void()>& update) {
  constexpr int kBatches = 200, kUpdates = 100;
  double fastest = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kUpdates; ++i) update();
    fastest = std::min(fastest, 1e9 * seconds_since(start) / kUpdates);
  }
  return fastest;
}

TEST(Pulse, AnUpdateNeitherCallsTheSystemNorWaits) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "times under a sanitizer are not the program's";
#endif
  const TemporaryDirectory run;
  PulseWriter writer(run.path(), {});
  const int group = writer.add_group(1, "dp", 2);
  const PulsePost post{
      .group = group, .number = 1, .bytes = 1 << 20, .op = "reduce_scatter", .label = "gradients"};
  const double enter_ns = fastest_ns([&] { writer.enter_part(PulsePlace::kForward, 3, 1); });
  const double post_ns = fastest_ns([&] { writer.ended(writer.post(post)); });
  fmt::print("enter {:.1f} ns, post and end {:.1f} ns\n", enter_ns, post_ns);
  EXPECT_LE(enter_ns, 150);
  EXPECT_LE(post_ns, 300);  // two updates
}

}  // namespace
}  // namespace ashlar
