// Power cuts and failing calls at every point of opening, saving and removing.
#include <gtest/gtest.h>

#include "tests/checkpoint/crash_files.h"
#include "tests/checkpoint/writers_test_util.h"

namespace ashlar::checkpoint {
namespace {

// The parameter is the number of writers.  They write in turn, so that calls have the same order
// each time.
class Crash : public testing::TestWithParam<int> {};
class Inject : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Writers, Crash, testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Writers, Inject, testing::Values(1, 2));

std::unique_ptr<Writers> make_writers(FileSystem& files, int num_writers, Log& log) {
  CheckpointOptions options = direct(1);
  options.part_timeout_s = 0.01;
  return std::make_unique<Writers>(std::vector<FileSystem*>(size_t(num_writers), &files), kRoot,
                                   options, log);
}

// With retention from the second on.  Several writers make more calls: fewer steps will do.
int64_t last_step(int num_writers) {
  return num_writers == 1 ? 3 : 2;
}

// Saves all steps; returns the last step that was announced, -1 for none.
int64_t run_until_fault(FileSystem& files, int num_writers, Log& log) {
  Shares shares = Shares::rows(num_writers);
  int64_t announced = -1;
  try {
    const auto writers = make_writers(files, num_writers, log);
    for (int64_t step = 1; step <= last_step(num_writers); ++step) {
      shares.fill(step);
      writers->save_in_turn(shares, step);
      announced = step;
    }
  } catch (const Error&) {
  }
  return announced;
}

int64_t calls_of_saves(int num_writers) {
  CrashFiles disk;
  int64_t calls = 0;
  const auto files = faulty_files(disk, [&](int64_t call, std::string_view, const std::string&) {
    calls = call + 1;
    return Fault::kNone;
  });
  Log log = quiet_log();
  EXPECT_EQ(run_until_fault(*files, num_writers, log), last_step(num_writers));
  return calls;
}

TEST_P(Crash, EveryCallAndEveryKindOfLoss) {
  const int64_t calls = calls_of_saves(GetParam());
  ASSERT_GT(calls, 200);
  Log log = quiet_log();
  int64_t num_crashes = 0;
  for (int64_t crash = 0; crash < calls; ++crash) {
    CrashFiles disk;
    const auto files = faulty_files(disk, [&](int64_t call, std::string_view, const std::string&) {
      return call >= crash ? Fault::kCrash : Fault::kNone;
    });
    const int64_t announced = run_until_fault(*files, GetParam(), log);
    for (const auto& [survives, seed] : losses(1)) {
      ++num_crashes;
      SCOPED_TRACE(
          fmt::format("crash at call {}, survival {}, seed {}", crash, int(survives), seed));
      const auto after = disk.after_crash(survives, uint64_t(crash) * 8 + seed);
      for (const StepRef& ref : committed_steps(*after, kRoot))  // nothing half removed, half made
        ASSERT_TRUE(verify_step(*after, ref.directory, VerifyLevel::kDeep, log).ok()) << ref.step;
      const auto writers = make_writers(*after, GetParam(), log);
      const auto newest = (*writers)[0].newest();
      ASSERT_EQ(newest ? std::max(newest->step, announced) : announced, newest ? newest->step : -1);
      if (newest) expect_holds(*after, newest->directory, newest->step);
      Shares shares = Shares::rows(GetParam());
      const int64_t next = newest ? newest->step + 1 : 1;
      shares.fill(next);
      writers->save_in_turn(shares, next);
      expect_holds(*after, (*writers)[0].newest()->directory, next);
      for (const std::string& name : after->list(kRoot))
        EXPECT_FALSE(name.starts_with(".tmp-") || name.starts_with(".trash-")) << name;
    }
  }
  fmt::print("crash: {} power cuts at {} calls of {} writers, announced steps lost 0\n",
             num_crashes, calls, GetParam());
}

// Every single call fails once, in three ways: the save succeeds all the same, or it fails with a
// message that names stage and path and the next try works.
TEST_P(Inject, EveryCallFailsOnce) {
  const int64_t calls = calls_of_saves(GetParam());
  Log log = quiet_log();
  int64_t failures = 0;
  for (const Fault fault : {Fault::kIoError, Fault::kDiskFull, Fault::kShortWrite})
    for (int64_t bad = 0; bad < calls; ++bad) {
      SCOPED_TRACE(fmt::format("fault {} at call {}", int(fault), bad));
      CrashFiles disk;
      const auto files =
          faulty_files(disk, [&](int64_t call, std::string_view, const std::string&) {
            return call == bad ? fault : Fault::kNone;
          });
      Shares shares = Shares::rows(GetParam());
      std::unique_ptr<Writers> writers;
      const auto attempt = [&](const std::function<void()>& body, std::string_view expected) {
        try {
          body();
        } catch (const Error& error) {
          ++failures;
          EXPECT_EQ(error.kind(), ErrorKind::kStorage) << error.what();
          EXPECT_NE(std::string_view(error.what()).find(expected), std::string_view::npos)
              << error.what();
          EXPECT_NE(std::string_view(error.what()).find(" /"), std::string_view::npos)
              << error.what();
          body();
        }
      };
      attempt([&] { writers = make_writers(*files, GetParam(), log); }, "");
      for (int64_t step = 1; step <= last_step(GetParam()); ++step) {
        shares.fill(step);
        attempt([&] { writers->save_in_turn(shares, step); },
                fmt::format("step {} is not saved", step));
        ASSERT_EQ((*writers)[0].newest()->step, step);
        EXPECT_EQ((*writers)[0].consecutive_failures(), 0);
      }
      writers.reset();
      expect_holds(disk, join(kRoot, step_name(last_step(GetParam()))), last_step(GetParam()));
    }
  EXPECT_GT(failures, calls / 2);
}

TEST(Directories, AreDurableWithAllThatHadToBeMade) {
  for (const char* path : {"/a/b/c", "a/b/c", "a"}) {
    CrashFiles disk;
    make_durable_directories(disk, path);
    EXPECT_TRUE(disk.after_crash(Survives::kSyncedOnly, 0)->stat(path)) << path;
    make_durable_directories(disk, path);
  }
}

TEST(InjectOne, MessageNamesStageAndPathAndRetriesAreLimited) {
  const auto disk = memory_files();
  Log log = quiet_log();
  std::string failing;
  int64_t tries = 0;
  const auto files =
      faulty_files(*disk, [&](int64_t, std::string_view operation, const std::string& path) {
        if (failing.empty() || operation != failing || path.find("optim/") == path.npos)
          return Fault::kNone;
        ++tries;
        return Fault::kIoError;
      });
  Checkpointer checkpoints(*files, kRoot, direct(), log);
  TinyRun run;
  run.fill(1);
  for (const auto& [operation, stage, count] : {std::tuple{"write", "writing", 4},
                                                {"sync", "syncing", 1},
                                                {"reserve", "creating a file", 1}}) {
    failing = operation;
    tries = 0;
    const std::string message =
        message_of(ErrorKind::kStorage, [&] { checkpoints.save(run.request(1)); });
    EXPECT_NE(message.find(fmt::format("step 1 is not saved: {}", stage)), message.npos) << message;
    EXPECT_NE(message.find("optim/shard-00001-model-00001-of-00001.safetensors"), message.npos);
    EXPECT_EQ(tries, count);
  }
  EXPECT_EQ(checkpoints.consecutive_failures(), 3);
  EXPECT_FALSE(checkpoints.newest());
  failing.clear();
  checkpoints.save(run.request(1));
  EXPECT_EQ(checkpoints.consecutive_failures(), 0);
  EXPECT_EQ(disk->list(kRoot), (std::vector<std::string>{".lease", "LATEST", step_name(1)}));
}

// The sync of the root happens and answers an error; then the power fails.  The step was never
// announced: it is not there again.
TEST(InjectOne, AStepThatWasGivenUpStaysAway) {
  class LateAnswer : public CrashFiles {
   public:
    void sync_directory(const std::string& path) override {
      CrashFiles::sync_directory(path);
      if (path != kRoot || !stat(join(kRoot, step_name(1))) || std::exchange(said, true)) return;
      ASHLAR_FAIL(kStorage, "sync_directory {}: it was made", path);
    }
    bool said = false;
  } files;
  Log log = quiet_log();
  Checkpointer checkpoints(files, kRoot, direct(), log);
  TinyRun run;
  message_of(ErrorKind::kStorage, [&] { checkpoints.save(run.request(1)); });
  ASSERT_TRUE(files.said);
  const auto after = files.after_crash(Survives::kSyncedOnly, 0);
  EXPECT_TRUE(committed_steps(*after, kRoot).empty());
}

// As over a network, where an answer is lost and the call made again.
TEST(InjectOne, ARenameThatWasMadeAndAnswersAnErrorCommits) {
  class LostAnswer : public CrashFiles {
   public:
    void rename_new(const std::string& from, const std::string& to) override {
      CrashFiles::rename_new(from, to);
      if (to.ends_with(step_name(1))) ASHLAR_FAIL(kStorage, "rename_new {}: no such file", from);
    }
  } files;
  Log log = quiet_log();
  Checkpointer checkpoints(files, kRoot, direct(), log);
  TinyRun run;
  run.fill(1);
  checkpoints.save(run.request(1));
  EXPECT_EQ(checkpoints.newest()->step, 1);
  expect_holds(*files.after_crash(Survives::kSyncedOnly, 0), join(kRoot, step_name(1)), 1);
}

// Nor if the attempt itself is gone.
TEST(InjectOne, AnotherStepInTheWayIsNotTakenForOnesOwn) {
  class Thief : public CrashFiles {
   public:
    void rename_new(const std::string& from, const std::string& to) override {
      if (steals && to.ends_with(step_name(1))) remove_all(from);
      CrashFiles::rename_new(from, to);
    }
    bool steals = false;
  } files;
  Log log = quiet_log();
  Checkpointer checkpoints(files, kRoot, direct(), log);
  files.make_directories(join(kRoot, step_name(1)));
  TinyRun run;
  for (const bool with_commit : {false, true})
    for (const bool steals : {false, true}) {
      if (with_commit) overwrite(files, join(join(kRoot, step_name(1)), kCommitName), "another's");
      files.steals = steals;
      const std::string message =
          message_of(ErrorKind::kStorage, [&] { checkpoints.save(run.request(1)); });
      EXPECT_NE(message.find("step 1 is not saved: committing: "), message.npos) << message;
      EXPECT_FALSE(checkpoints.newest());
    }
}

// A verdict and a step that was set aside outlive a power cut, the first of them too.
TEST(Directories, VerdictsAndWhatIsSetAsideAreDurable) {
  CrashFiles disk;
  Log log = quiet_log();
  TinyRun run;
  {
    Checkpointer checkpoints(disk, kRoot, direct(), log);
    for (const int64_t step : {1, 2}) checkpoints.save(run.request(step));
  }
  const std::vector<StepRef> steps = committed_steps(disk, kRoot);
  Lease lease(disk, kRoot, log);
  record_verified(lease.fence(), steps[0]);
  EXPECT_TRUE(is_verified(*disk.after_crash(Survives::kSyncedOnly, 0), kRoot, steps[0]));
  record_bad(lease.fence(), steps[1], "a test");
  EXPECT_TRUE(is_bad(*disk.after_crash(Survives::kSyncedOnly, 0), kRoot, steps[1]));
  quarantine(lease.fence(), steps[1]);
  const auto after = disk.after_crash(Survives::kSyncedOnly, 0);
  EXPECT_EQ(committed_steps(*after, kRoot).size(), 1u);
  EXPECT_EQ(after->list(join(kRoot, kBadDirectory)).size(), 2u);
}

// Old or new text, whenever the power fails, and new once the call returned.
TEST(Directories, ASmallFileIsNeverTorn) {
  for (int64_t crash = 0; crash < 12; ++crash) {
    CrashFiles disk;
    disk.make_directories("/a");
    disk.sync_directory("/");
    write_text(disk, "/a/x", std::string(2000, 'o'));
    bool done = true;
    const auto files = faulty_files(disk, [&](int64_t call, std::string_view, const std::string&) {
      return call >= crash ? Fault::kCrash : Fault::kNone;
    });
    try {
      write_text(*files, "/a/x", std::string(2000, 'n'));
    } catch (const Error&) {
      done = false;
    }
    if (crash == 11) {
      EXPECT_TRUE(done);  // it makes fewer calls
    }
    for (const uint64_t seed : {1, 2, 3, 4})
      for (const Survives survives : {Survives::kSyncedOnly, Survives::kAll, Survives::kTorn}) {
        const std::string text = read_all(*disk.after_crash(survives, seed), "/a/x");
        EXPECT_TRUE(text == std::string(2000, 'n') || (!done && text == std::string(2000, 'o')))
            << crash;
      }
  }
}

TEST(InjectOne, AFileSystemThatSyncsNoDirectoriesIsNamed) {
  class Nameless : public CrashFiles {
   public:
    bool keeps_names(const std::string&) override { return false; }
  } files;
  Log log = quiet_log();
  Checkpointer checkpoints(files, kRoot, direct(), log);
  TinyRun run;
  checkpoints.save(run.request(1));
  EXPECT_EQ(checkpoints.open_newest().manifest().durability, "files");
}

// The leader asks for the room that all writers need.
TEST(InjectOne, ADiskWithRoomForOneWriterOnlyIsRefused) {
  class Small : public CrashFiles {
   public:
    int64_t free_bytes(const std::string&) override { return int64_t(20) << 20; }
  } files;
  Log log = quiet_log();
  Writers writers(same(files, 2), kRoot, direct(), log);
  Shares shares = Shares::rows(2);
  const LogicalTensor large{"large", DType::kF32, {1 << 20}, Role::kParameter};  // 4 MiB
  SaveRequest request = shares.request(0, 1, random_id());
  request.whole = std::span(&large, 1);
  const std::string message = message_of(ErrorKind::kStorage, [&] { writers[0].save(request); });
  EXPECT_NE(message.find("step 1 is not saved: it needs 20.2"), message.npos) << message;
}

TEST(InjectOne, AFullDiskIsFoundBeforeAnythingIsWritten) {
  class Full : public CrashFiles {
   public:
    int64_t free_bytes(const std::string&) override { return room; }
    int64_t room = 1 << 20;
  } files;
  Log log = quiet_log();
  Checkpointer checkpoints(files, kRoot, direct(), log);
  TinyRun run;
  const std::string message =
      message_of(ErrorKind::kStorage, [&] { checkpoints.save(run.request(1)); });
  EXPECT_NE(message.find("make room or lower checkpoint.keep"), message.npos) << message;
  EXPECT_EQ(files.list(kRoot), std::vector<std::string>{".lease"});
  EXPECT_EQ(checkpoints.consecutive_failures(), 1);
  message_of(ErrorKind::kStorage, [&] { checkpoints.save(run.request(2)); });
  EXPECT_EQ(checkpoints.consecutive_failures(), 2);
  files.room = int64_t(1) << 40;
  checkpoints.save(run.request(3));
  EXPECT_EQ(checkpoints.consecutive_failures(), 0);
}

}  // namespace
}  // namespace ashlar::checkpoint
