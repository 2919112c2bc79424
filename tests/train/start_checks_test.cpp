// Reasons for which a start is refused before it reads anything, and its warnings.
#include "ashlar/train/start_checks.h"

#include <gtest/gtest.h>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using ashlar::testing_support::message_of;
using ashlar::testing_support::TemporaryDirectory;

TEST(StartChecks, MemoryIsThePlanAndIdsTargetsAndLossesOfAStep) {
  const Recipe recipe = recipe_with({"train.global_batch=24"});
  const RunPlan plan = plan_run(recipe, DType::kF32, 2, 1);
  const ParallelSpec parallel = resolve_parallel(recipe, 2);
  EXPECT_EQ(rank_bytes(plan, recipe, parallel),
            plan.memory.total.peak_bytes + 12 * 48 * (4 + 4 + 8));
}

TEST(StartChecks, TooMuchMemoryIsRefused) {
  const Recipe recipe = recipe_with({"train.memory_limit_mib=100"});
  EXPECT_EQ(memory_limit_problem(100 << 20, recipe, 1), "");
  EXPECT_EQ(memory_limit_problem(100 << 20, recipe_with({}), 100), "");
  EXPECT_TRUE(memory_limit_problem((100 << 20) + 1, recipe, 1)
                  .starts_with("train.memory_limit_mib is 100, but a rank takes 100.00 MiB; "
                               "choose a smaller train.micro_batch"));
  EXPECT_TRUE(memory_limit_problem(60 << 20, recipe, 2)
                  .starts_with("train.memory_limit_mib is 100 for 2 ranks together, but a rank "
                               "takes 60.00 MiB; "));
  on_ranks(2, [&](comm::Group& ranks, Allocator&) {
    const Recipe free = recipe_with({});
    // The machine holds the ranks that stand on it, as large as the mean of all.
    const int64_t own = ranks.rank() == 0 ? 500 : 1500;
    EXPECT_NO_THROW(require_memory(own, free, ranks, 2, 2000));
    EXPECT_NO_THROW(require_memory(own, free, ranks, 1, 1500));
    const std::string told =
        message_of(ErrorKind::kMemory, [&] { require_memory(own, free, ranks, 2, 1999); });
    EXPECT_TRUE(
        told.starts_with("the run takes 1.95 KiB on this machine (2 ranks), which has "
                         "1.95 KiB; choose"))
        << told;
  });
}

TEST(StartChecks, TheStreamOfAMicroBatchIsTheLeastThatARunTakes) {
  const Recipe recipe = recipe_with({"train.micro_batch=1000000", "train.global_batch=1000000",
                                     "data.sequence_length=256", "data.num_streams=0"});
  const auto least = [&](int tp, int local_ranks) {
    return 256'000'000 / tp * recipe.model.hidden_size * int64_t(sizeof(float)) * local_ranks;
  };
  for (const auto& [tp, local_ranks] : {std::pair{1, 1}, {2, 2}, {4, 2}}) {
    ParallelSpec parallel = resolve_parallel(recipe, 1);
    parallel.tp = tp;
    const auto check = [&](int64_t machine_bytes) {
      require_least_memory(recipe, parallel, DType::kF32, local_ranks, machine_bytes);
    };
    EXPECT_NO_THROW(check(least(tp, local_ranks)));
    EXPECT_TRUE(message_of(ErrorKind::kMemory, [&] {
                  check(least(tp, local_ranks) - 1);
                }).starts_with("the run takes over "));
  }
}

// In a moment, and before it looks for weights or data.
TEST(StartChecks, AHundredThousandSequencesAreRefusedBeforeAnythingIsRead) {
  const auto files = memory_files();
  Log log([](std::string_view) {});
  for (const Overrides& more :
       {Overrides{"train.micro_batch=100000"},
        Overrides{"train.micro_batch=100000", "train.memory_limit_mib=4000"},
        Overrides{"train.micro_batch=1", "data.sequence_length=256",
                  "train.memory_limit_mib=100"}}) {
    Overrides all = {"train.global_batch=100000", "data.num_streams=0", "data.train=nowhere",
                     "init.model=nowhere"};
    all.insert(all.end(), more.begin(), more.end());
    const Recipe recipe = recipe_with(all);
    const auto start = Clock::now();
    const std::string told =
        message_of(ErrorKind::kMemory, [&] { start_run(recipe, *files, log, {}); });
    EXPECT_NE(told.find("choose a smaller train.micro_batch"), std::string::npos) << told;
    EXPECT_LT(seconds_since(start), 20.0);  // on a loaded machine
    EXPECT_FALSE(files->stat("run"));
  }
}

TEST(StartChecks, AStepOfHoursIsAWarning) {
  const Recipe recipe =
      recipe_with({"train.global_batch=1000", "data.sequence_length=100", "data.num_streams=0"});
  EXPECT_EQ(long_step_warning(recipe, 1e9, 1e12), "");  // 100 s
  EXPECT_EQ(long_step_warning(recipe, 1e9, 1e10),
            "a step has 100,000 tokens (train.global_batch 1,000 x data.sequence_length 100): at "
            "the measured peak of 10 GFLOP/s it takes 2h46m, and at a usual third of that 8h20m; "
            "choose a smaller train.global_batch if that is not meant");
}

TEST(StartChecks, ThreadsAboveTheCpusAreAWarning) {
  EXPECT_EQ(threads_warning(2, 1, 2), "");
  EXPECT_EQ(threads_warning(1, 4, 4), "");
  EXPECT_EQ(threads_warning(500, 1, 2),
            "1 rank x 500 threads on 2 CPUs, which they take in turns; choose fewer ranks or "
            "train.threads=2");
  EXPECT_EQ(threads_warning(1, 4, 2),
            "4 ranks x 1 thread on 2 CPUs, which they take in turns; choose fewer ranks or "
            "train.threads=1");
}

TEST(StartChecks, ADirectoryThatCannotBeWrittenIsRefusedByItsKey) {
  const TemporaryDirectory root;
  const auto files = posix_files();
  const auto at = [&](const std::string& name) { return (root / name).string(); };
  const auto with = [&](const std::string& name) {
    return recipe_with({"train.run_dir=" + at(name)});
  };
  EXPECT_NO_THROW(require_writable(*files, with("new/run")));
  EXPECT_TRUE(files->list(root.path().string()).empty());
  write_text(*files, at("file"), "");
  for (const char* name : {"file", "file/run"})
    EXPECT_EQ(message_of(ErrorKind::kStorage, [&] { require_writable(*files, with(name)); }),
              "train.run_dir is " + at(name) + ", but " + at("file") +
                  " is no directory; choose another");
  // Whatever the file system says: root may write to a directory without rights.
  const auto full =
      faulty_files(*files, [](int64_t, std::string_view operation, const std::string&) {
        return operation == "create" ? Fault::kDiskFull : Fault::kNone;
      });
  const std::string told =
      message_of(ErrorKind::kStorage, [&] { require_writable(*full, with("new/run")); });
  EXPECT_TRUE(told.starts_with("train.run_dir is " + at("new/run") +
                               ", where this process can make no file (create "))
      << told;
  EXPECT_TRUE(told.ends_with("; choose a directory that it may write to")) << told;
}

// Everything but the room is that of a file system in memory.
class Disk : public FileSystem {
 public:
  explicit Disk(int64_t free_bytes) : free_bytes_(free_bytes) {}
  std::unique_ptr<File> open(const std::string& p, LinkPolicy l) override {
    return in_->open(p, l);
  }
  std::unique_ptr<File> create(const std::string& p) override { return in_->create(p); }
  std::unique_ptr<File> append(const std::string& p) override { return in_->append(p); }
  std::unique_ptr<Mapping> map(const std::string& p, LinkPolicy l) override {
    return in_->map(p, l);
  }
  std::optional<FileInfo> stat(const std::string& p, LinkPolicy l) override {
    return in_->stat(p, l);
  }
  std::vector<std::string> list(const std::string& p) override { return in_->list(p); }
  void make_directories(const std::string& p) override { in_->make_directories(p); }
  void rename_new(const std::string& a, const std::string& b) override { in_->rename_new(a, b); }
  void replace(const std::string& a, const std::string& b) override { in_->replace(a, b); }
  void remove(const std::string& p) override { in_->remove(p); }
  void remove_all(const std::string& p) override { in_->remove_all(p); }
  void sync_directory(const std::string& p) override { in_->sync_directory(p); }
  int64_t free_bytes(const std::string&) override { return free_bytes_; }

 private:
  std::unique_ptr<FileSystem> in_ = memory_files();
  int64_t free_bytes_;
};

TEST(StartChecks, RoomIsThatOfTheStepsThatStandAtOnce) {
  const int64_t kept_free = checkpoint::room_to_save(1000) - 1000;
  const struct {
    Overrides overrides;
    int64_t there, free;  // free: beyond what a save keeps free
    std::string wanted;   // "": fits; "warning" or "refused", and what is named
  } cases[] = {
      {{}, 0, 4000, ""},  // keep 3, and the one that is written
      {{}, 0, 3999, "warning: checkpoint.keep is 3: up to 4 checkpoints of 1000 B"},
      {{"checkpoint.keep=2"}, 0, 3000, ""},
      {{}, 0, 999, "refused"},
      {{}, 3, 1000, ""},
      {{}, 3, 999, "refused"},
      {{}, 0, 1000 - kept_free, "refused"},  // fits, but a save would not write it
      {{}, 0, 4000 - kept_free, "refused"},
      {{"train.steps=15"}, 0, 2000, ""},  // two are saved in all
      {{"checkpoint.every=0"}, 0, 1000, ""},
      {{"checkpoint.every=-1"}, 0, 0, ""},
      {{"train.steps=3"}, 3, -kept_free, ""},  // it is done
      {{"checkpoint.keep_every=50"}, 0, 5999, "warning: checkpoint.keep is 3 and "},
  };
  for (const auto& c : cases) {
    Overrides all = {"train.steps=100", "checkpoint.every=10", "checkpoint.keep=3"};
    all.insert(all.end(), c.overrides.begin(), c.overrides.end());
    const Recipe recipe = recipe_with(all);
    Disk disk(c.free + kept_free);
    for (int64_t step = 1; step <= c.there; ++step)
      disk.make_directories(fmt::format("run/checkpoints/step-{:012}", step));
    std::string said;
    Log log([&](std::string_view line) { said += line; });
    if (c.wanted == "refused") {
      const std::string told =
          message_of(ErrorKind::kStorage, [&] { check_room(disk, recipe, 1000, log); });
      EXPECT_TRUE(
          told.starts_with("a checkpoint has 1000 B and is saved where 16.00 MiB are free, "
                           "but the file system of run (train.run_dir) has "))
          << told;
    } else {
      check_room(disk, recipe, 1000, log);
      EXPECT_TRUE(c.wanted.empty() ? said.empty() : said.starts_with(c.wanted)) << said;
    }
  }
}

}  // namespace
}  // namespace ashlar::train
