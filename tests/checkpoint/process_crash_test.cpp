// One process of several dies while the others go on: at every call that it makes of the file
// system.  The others time out and tell; after a restart nothing that was announced is lost.
#include <gtest/gtest.h>

#include "tests/checkpoint/crash_files.h"
#include "tests/checkpoint/writers_test_util.h"

namespace ashlar::checkpoint {
namespace {

constexpr int kWriters = 3;
constexpr int64_t kSteps = 3;  // with retention from the second on

CheckpointOptions options_of(bool async) {
  CheckpointOptions options = direct(1);
  options.async = async;
  options.part_timeout_s = 0.01;
  return options;
}

// Writer `mortal` reaches the disk by `files`; what it throws after its death is nobody's concern.
struct Fleet {
  std::vector<std::unique_ptr<Checkpointer>> writers;

  Fleet(FileSystem& disk, FileSystem& files, int mortal, bool async, Log& log) {
    CheckpointOptions options = options_of(async);
    options.num_writers = kWriters;
    if (mortal < 0) options.part_timeout_s = 60;  // nobody dies; on a busy machine all are slow
    for (options.writer_rank = 0; options.writer_rank < kWriters; ++options.writer_rank)
      writers.push_back(std::make_unique<Checkpointer>(options.writer_rank == mortal ? files : disk,
                                                       kRoot, options, log));
  }

  // True if the leader announced the step.
  bool save(Shares& shares, int64_t step) {
    const Id attempt = random_id();
    for (int w = kWriters - 1; w >= 0; --w) {  // synchronous ones wait: the leader is the last
      try {
        writers[size_t(w)]->save(shares.request(w, step, attempt));
        writers[size_t(w)]->before_update();
      } catch (const Error&) {
      }
    }
    for (auto& writer : writers) EXPECT_TRUE(writer->drain(60));
    (void)writers[0]->take_failures();
    for (const SaveStats& stats : writers[0]->take_stats())
      if (stats.step == step) return true;
    return false;
  }
};

// The last step that was announced; -1: none.
int64_t run(FileSystem& disk, FileSystem& files, int mortal, bool async, Log& log) {
  int64_t announced = -1;
  try {
    Fleet fleet(disk, files, mortal, async, log);
    Shares shares = Shares::rows(kWriters);
    for (int64_t step = 1; step <= kSteps; ++step) {
      shares.fill(step);
      if (fleet.save(shares, step)) announced = step;
    }
  } catch (const Error&) {  // it died while it was made
  }
  return announced;
}

int64_t calls_of_mortal(int mortal, bool async) {
  CrashFiles disk;
  int64_t calls = 0;
  const auto files = faulty_files(disk, [&](int64_t call, std::string_view, const std::string&) {
    calls = call + 1;
    return Fault::kNone;
  });
  Log log = quiet_log();
  EXPECT_EQ(run(disk, *files, mortal, async, log), kSteps);
  return calls;
}

void expect_restart(FileSystem& disk, int64_t announced, Log& log) {
  for (const StepRef& ref : committed_steps(disk, kRoot))
    ASSERT_TRUE(verify_step(disk, ref.directory, VerifyLevel::kDeep, log).ok()) << ref.step;
  Fleet fleet(disk, disk, -1, true, log);
  const auto newest = fleet.writers[0]->newest();
  ASSERT_TRUE(newest || announced < 0) << "step " << announced << " is lost";
  if (newest) {
    ASSERT_GE(newest->step, announced);
    expect_holds(disk, newest->directory, newest->step);
  }
  const int64_t next = newest ? newest->step + 1 : 1;
  Shares shares = Shares::rows(kWriters);
  shares.fill(next);
  ASSERT_TRUE(fleet.save(shares, next));
  expect_holds(disk, fleet.writers[0]->newest()->directory, next);
  for (const std::string& name : disk.list(kRoot))
    EXPECT_FALSE(name.starts_with(".tmp-") || name.starts_with(".trash-")) << name;
}

class OneDies : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(ProcessCrash, OneDies,
                         testing::Combine(testing::Range(0, kWriters), testing::Bool()),
                         [](const auto& info) {
                           return fmt::format("writer{}{}", std::get<0>(info.param) + 1,
                                              std::get<1>(info.param) ? "_async" : "");
                         });

TEST_P(OneDies, AtEveryCall) {
  const auto [mortal, async] = GetParam();
  const int64_t calls = calls_of_mortal(mortal, async);
  ASSERT_GT(calls, 50);
  Log log = quiet_log();
  int64_t num_losses = 0;
  for (int64_t death = 0; death < calls; ++death) {
    SCOPED_TRACE(fmt::format("dies at call {} of {}", death, calls));
    CrashFiles disk;
    const auto files = faulty_files(disk, [&](int64_t call, std::string_view, const std::string&) {
      return call >= death ? Fault::kCrash : Fault::kNone;
    });
    const int64_t announced = run(disk, *files, mortal, async, log);
    // The machine goes on, and all that was written is there; or it goes down behind the process.
    for (const auto& [survives, seed] : losses(1)) {
      ++num_losses;
      const auto after = disk.after_crash(survives, uint64_t(death) * 8 + seed);
      expect_restart(*after, announced, log);
      if (HasFatalFailure()) return;
    }
  }
  fmt::print("crash: {} deaths of writer {} of {} at {} calls ({}), announced steps lost 0\n",
             num_losses, mortal + 1, kWriters, calls, async ? "asynchronous" : "synchronous");
}

}  // namespace
}  // namespace ashlar::checkpoint
