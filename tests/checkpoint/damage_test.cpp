// A root whose newest step is damaged in one of many ways: whoever is asked for the newest good
// step of it, a run or a reader, names the same one.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "tests/checkpoint/state_test_util.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::checkpoint {
namespace {

namespace fs = std::filesystem;
using Damage = std::function<void(const std::string& path)>;

void flip(const std::string& path, double part) {
  const auto files = posix_files();
  std::string text = read_all(*files, path);
  const auto at = size_t(part * double(text.size() - 1));
  text[at] = char(text[at] ^ 0x20);
  overwrite(*files, path, text);
}

void resize(const std::string& path, int64_t size) {
  fs::resize_file(path, uintmax_t(size));
}

void make_loop(const std::string& path) {
  fs::remove_all(path);
  fs::create_symlink(fs::path(path).filename(), path);
}

// Everything that can happen to a file of this size.
std::vector<std::pair<std::string, Damage>> damages_of_file(int64_t size) {
  std::vector<std::pair<std::string, Damage>> list = {
      {"removed", [](const std::string& path) { fs::remove(path); }},
      {"one byte longer", [size](const std::string& path) { resize(path, size + 1); }},
      {"a directory",
       [](const std::string& path) {
         fs::remove(path);
         fs::create_directory(path);
       }},
      {"a loop of links", make_loop},
      {"a link to itself elsewhere", [](const std::string& path) {
         fs::rename(path, path + ".real");
         fs::create_symlink(path + ".real", path);
       }}};
  if (size == 0) return list;
  list.emplace_back("emptied", [](const std::string& path) { resize(path, 0); });
  list.emplace_back("cut in half", [size](const std::string& path) { resize(path, size / 2); });
  list.emplace_back("one byte shorter",
                    [size](const std::string& path) { resize(path, size - 1); });
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0})
    list.emplace_back(fmt::format("a bit at {}", part),
                      [part](const std::string& path) { flip(path, part); });
  list.emplace_back("zeros", [size](const std::string& path) {
    resize(path, 0);
    resize(path, size);
  });
  return list;
}

std::vector<std::pair<std::string, Damage>> damages_of_directory() {
  return {{"removed", [](const std::string& path) { fs::remove_all(path); }},
          {"emptied",
           [](const std::string& path) {
             fs::remove_all(path);
             fs::create_directory(path);
           }},
          {"a file",
           [](const std::string& path) {
             fs::remove_all(path);
             overwrite(*posix_files(), path, "x");
           }},
          {"a loop of links", make_loop},
          {"moved, and a link to it", [](const std::string& path) {
             fs::rename(path, path + "-elsewhere");
             fs::create_directory_symlink(path + "-elsewhere", path);
           }}};
}

// The step a run continues from: opened, then loaded as training does; what fails is set aside.
int64_t resumed(FileSystem& files, const std::string& root, Log& log) {
  Checkpointer checkpoints(files, root, direct(10), log);
  TinyRun run;
  while (checkpoints.newest()) try {
      checkpoints.open_newest().load(run.all());
      break;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      checkpoints.reject_newest(error.what());
    }
  return checkpoints.newest() ? checkpoints.newest()->step : -1;
}

int64_t chosen(FileSystem& files, const std::string& root, VerifyLevel level, Log& log) {
  for (const StepInfo& info : list_steps(files, root, level, log))
    if (info.recovery_choice) return info.step;
  return -1;
}

class DamagedRoot : public testing::Test {
 protected:
  void SetUp() override {
    Checkpointer checkpoints(*files_, whole_, direct(10), log_);
    for (int64_t step = 1; step <= 3; ++step) {
      run_.fill(step);
      checkpoints.save(run_.request(step));
    }
  }
  // Step 3 verified before it was damaged: that counts for nothing.
  void verify() {
    as_holder(*files_, whole_, [&](Fence& fence) {
      record_verified(fence, committed_steps(*files_, whole_).back());
    });
  }
  // All agree on the step; the cheap check is not behind them, and with them if it sees the damage.
  int64_t agreed(const std::string& root) {
    const int64_t quick = chosen(*files_, root, VerifyLevel::kQuick, log_);
    const int64_t listed = chosen(*files_, root, VerifyLevel::kDeep, log_);
    const int64_t read = open_checkpoint(*files_, root, log_).step();
    EXPECT_EQ(find_newest(*files_, root, VerifyLevel::kDeep, log_).newest->step, read);
    EXPECT_EQ(listed, read);
    EXPECT_EQ(resumed(*files_, root, log_), read);
    EXPECT_GE(quick, read);
    return read;
  }
  void try_all(const std::string& name,
               const std::vector<std::pair<std::string, Damage>>& damages) {
    for (const auto& [what, damage] : damages) {
      SCOPED_TRACE(name + ": " + what);
      const std::string root = directory_ / fmt::format("root{}", ++count_);
      fs::copy(whole_, root, fs::copy_options::recursive);
      damage(join(join(root, step_name(3)), name));
      const bool hurts = !what.starts_with("moved");
      EXPECT_EQ(agreed(root), hurts ? 2 : 3);
      fs::remove_all(root);
    }
  }
  void try_everything() {
    const std::string step = join(whole_, step_name(3));
    for (const auto& entry : fs::recursive_directory_iterator(step)) {
      const std::string name = fs::relative(entry.path(), step);
      try_all(name, entry.is_directory() ? damages_of_directory()
                                         : damages_of_file(int64_t(entry.file_size())));
    }
  }

  testing_support::TemporaryDirectory directory_;
  std::unique_ptr<FileSystem> files_ = posix_files();
  Log log_ = quiet_log();
  TinyRun run_;
  const std::string whole_ = directory_ / "whole";
  int count_ = 0;
};

TEST_F(DamagedRoot, EveryoneNamesTheSameStep) {
  try_everything();
  EXPECT_GT(count_, 100);
}

TEST_F(DamagedRoot, AlsoIfTheStepWasVerifiedBefore) {
  verify();
  try_everything();
}

// The name of a step, and no directory: no step, and in nobody's way.
TEST_F(DamagedRoot, WhatIsNamedLikeAStepIsNamedAndPassedOver) {
  std::string said;
  Log log([&](std::string_view line) { said += line; });
  const std::string file = join(whole_, step_name(4)), loop = join(whole_, step_name(5));
  overwrite(*files_, file, "x");
  make_loop(loop);
  EXPECT_EQ(agreed(whole_), 3);
  EXPECT_EQ(open_checkpoint(*files_, whole_, log).step(), 3);
  for (const std::string& path : {file, loop})
    EXPECT_NE(said.find(path + " is named like a step but is no directory"), said.npos) << said;
  int foreign = 0;
  for (const StepInfo& info : list_steps(*files_, whole_, VerifyLevel::kQuick, log_))
    foreign += info.state == StepState::kForeign;
  EXPECT_EQ(foreign, 2);
  EXPECT_TRUE(is_checkpoint(*files_, whole_));
  const std::string empty = directory_ / "empty";
  fs::create_directory(empty);
  make_loop(join(empty, step_name(5)));
  EXPECT_FALSE(is_checkpoint(*files_, empty));
  EXPECT_EQ(resumed(*files_, empty, log_), -1);
}

// The next owner of the lease removes what killed processes left, and nothing else.
TEST_F(DamagedRoot, ANewOwnerOfTheLeaseCollectsWhatDeadOnesLeft) {
  verify();
  const StepRef gone{9, "", std::string(32, 'a'), ""};
  as_holder(*files_, whole_, [&](Fence& fence) {
    record_verified(fence, gone);
    record_bad(fence, gone, "it was");
  });
  for (const char* name : {"LATEST.4321.tmp", ".verified/step-1.json.77.tmp", ".bad/x.json.1.tmp",
                           ".lease/trainer.json.5.tmp", "notes.tmp", "a.b.tmp", "1.tmp", "x.7.txt"})
    overwrite(*files_, join(whole_, name), "x");
  fs::create_directory(join(whole_, ".trash-1"));
  { Checkpointer checkpoints(*files_, whole_, direct(10), log_); }
  EXPECT_EQ(
      files_->list(whole_),
      (std::vector<std::string>{".bad", ".lease", ".verified", "1.tmp", "LATEST", "a.b.tmp",
                                "notes.tmp", step_name(1), step_name(2), step_name(3), "x.7.txt"}));
  const StepRef kept = committed_steps(*files_, whole_).back();
  EXPECT_EQ(files_->list(join(whole_, ".verified")),
            std::vector<std::string>{verdict_name(3, kept.attempt)});
  EXPECT_EQ(files_->list(join(whole_, ".bad")),
            std::vector<std::string>{verdict_name(9, gone.attempt)});
  EXPECT_EQ(files_->list(join(whole_, ".lease")).size(), 3u);  // the guards of the steps
}

}  // namespace
}  // namespace ashlar::checkpoint
