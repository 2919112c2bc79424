// Readers beside a trainer, pins, pruning: what is read or pinned stays, the newest always loads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "ashlar/checkpoint/root/reader_lease.h"
#include "ashlar/checkpoint/root/rewind.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/checkpoint/save/retention.h"
#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/checkpoint/two_hosts.h"

namespace ashlar::checkpoint {
namespace {

int64_t rounds_of(const char* variable, int64_t usual) {
  const char* text = std::getenv(variable);
  return text ? std::stoll(text) : usual;
}

std::vector<int64_t> steps_in(FileSystem& files) {
  std::vector<int64_t> steps;
  for (const StepRef& ref : committed_steps(files, "root")) steps.push_back(ref.step);
  return steps;
}

class Readers : public testing::Test {
 protected:
  void save(Checkpointer& checkpoints, int64_t step) {
    run_.fill(step);
    checkpoints.save(run_.request(step));
  }
  CheckpointOptions options(int64_t keep) {
    CheckpointOptions options = direct(keep);
    options.lease.now = [this] { return now_s_; };
    return options;
  }
  StepRef ref(int64_t step) { return refer(*files_, "root", step); }
  std::unique_ptr<ReaderLease> lease_on(int64_t step) {
    return ReaderLease::take(*files_, "root", ref(step));
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
  std::vector<std::string> lines_;
  Log log_{[this](std::string_view line) { lines_.emplace_back(line); }};
  TinyRun run_;
  double now_s_ = 0;
};

TEST_F(Readers, AStepThatIsReadStaysUntilItIsNot) {
  Checkpointer checkpoints(*files_, "root", options(1), log_);
  save(checkpoints, 1);
  auto lease = lease_on(1);
  ASSERT_TRUE(lease && lease->held());
  for (int64_t step = 2; step <= 6; ++step) save(checkpoints, step);
  EXPECT_EQ(steps_in(*files_).front(), 1);
  EXPECT_LE(steps_in(*files_).size(), 3u);
  EXPECT_EQ(list_steps(*files_, "root", VerifyLevel::kQuick, log_)[0].readers, 1);
  lease.reset();
  for (int64_t step = 7; step <= 8; ++step) save(checkpoints, step);
  EXPECT_GT(steps_in(*files_).front(), 1);
  EXPECT_EQ(ReaderLease::take(*files_, "root", {1, "root/" + step_name(1), "a", "run"}), nullptr);
}

// A killed reader of this host is known to be dead; of one on another host only silence tells.
TEST_F(Readers, WhatAKilledReaderLeftEnds) {
  Checkpointer checkpoints(*files_, "root", options(1), log_);
  save(checkpoints, 1);
  LeaseHolder here = this_process(), there = process_on("b");
  here.started += 1;
  there.refresh_s = 10;
  const std::string guard = guard_path("root", 1, ref(1).attempt);
  overwrite(*files_, join(guard, "here.json"), lease_text(here, 3));
  overwrite(*files_, join(guard, "there.json"), lease_text(there, 3));
  overwrite(*files_, join(guard, "torn.json"), "{\"host");
  for (int64_t step = 2; step <= 3; ++step) save(checkpoints, step);
  EXPECT_EQ(files_->list(guard), (std::vector<std::string>{"there.json", "torn.json"}));
  now_s_ += 59;
  overwrite(*files_, join(guard, "there.json"), lease_text(there, 4));  // it lives
  for (int64_t step = 4; step <= 5; ++step) save(checkpoints, step);
  now_s_ += 59;
  for (int64_t step = 6; step <= 7; ++step) save(checkpoints, step);
  EXPECT_EQ(files_->list(guard), (std::vector<std::string>{"there.json", "torn.json"}));
  now_s_ += 2;
  for (int64_t step = 8; step <= 9; ++step) save(checkpoints, step);
  EXPECT_EQ(files_->list(guard), std::vector<std::string>{"torn.json"});
  now_s_ += 360;
  for (int64_t step = 10; step <= 11; ++step) save(checkpoints, step);
  EXPECT_GT(steps_in(*files_).front(), 1);
  EXPECT_FALSE(files_->stat(guard));
}

TEST_F(Readers, APinnedStepStaysForGood) {
  {
    Checkpointer checkpoints(*files_, "root", options(1), log_);
    save(checkpoints, 1);
    pin(*files_, "root", ref(1));
    pin(*files_, "root", ref(1));
    for (int64_t step = 2; step <= 6; ++step) save(checkpoints, step);
  }
  Checkpointer checkpoints(*files_, "root", options(1), log_);
  save(checkpoints, 7);
  EXPECT_EQ(steps_in(*files_).front(), 1);
  EXPECT_TRUE(list_steps(*files_, "root", VerifyLevel::kQuick, log_)[0].pinned);
  unpin(*files_, "root", ref(1));
  EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { unpin(*files_, "root", ref(1)); }),
            "root/step-000000000001 is not pinned");
  for (int64_t step = 8; step <= 9; ++step) save(checkpoints, step);
  EXPECT_GT(steps_in(*files_).front(), 1);
}

// Steps of a program that knew no guards, and roots that cannot be written.
TEST_F(Readers, WithoutADoorAStepIsReadAllTheSame) {
  {
    Checkpointer checkpoints(*files_, "root", options(3), log_);
    save(checkpoints, 1);
  }
  const auto read_only =
      faulty_files(*files_, [&](int64_t, std::string_view operation, const std::string&) {
        return operation == "create" ? Fault::kIoError : Fault::kNone;
      });
  EXPECT_EQ(open_checkpoint(*read_only, "root", log_).step(), 1);
  EXPECT_FALSE(ReaderLease::take(*read_only, "root", ref(1))->held());
  files_->remove_all("root/.lease");
  EXPECT_EQ(open_checkpoint(*files_, "root", log_).step(), 1);
  EXPECT_FALSE(lease_on(1)->held());
  EXPECT_FALSE(files_->stat("root/.lease"));  // a reader makes none
  EXPECT_EQ(lines_, std::vector<std::string>{});
  pin(*files_, "root", ref(1));
  EXPECT_TRUE(lease_on(1)->held());
  Checkpointer checkpoints(*files_, "root", options(1), log_);  // makes a guard for every step
  for (int64_t step = 2; step <= 4; ++step) save(checkpoints, step);
  EXPECT_EQ(steps_in(*files_).front(), 1);
}

// An evaluation in a loop beside a run that keeps one step always finds one, and reads it whole.
TEST_F(Readers, AnEvaluationBesideTrainingThatKeepsOneStepNeverFails) {
  std::atomic<bool> done = false;
  Checkpointer checkpoints(*files_, "root", options(1), log_);
  save(checkpoints, 1);
  std::thread evaluation([&] {
    Log log = quiet_log();
    std::string error;
    try {
      const int64_t count = rounds_of("ASHLAR_READER_ROUNDS", 1000);
      for (int64_t round = 0; round < count && !HasFailure(); ++round) {
        const StepReader reader = open_checkpoint(*files_, "root", log);
        TinyRun loaded, expected;
        reader.load(loaded.all());
        expected.fill(reader.step());
        ASSERT_EQ(loaded.bytes(), expected.bytes());
      }
    } catch (const Error& caught) {
      error = caught.what();
    }
    EXPECT_EQ(error, "");
    done = true;
  });
  int64_t step = 1;
  while (!done) save(checkpoints, ++step);
  evaluation.join();
  EXPECT_GT(step, 10);
  EXPECT_LE(steps_in(*files_).size(), 3u);
}

TEST_F(Readers, PruningRemovesWhatARunWouldAndNothingBesideOne) {
  {
    Checkpointer checkpoints(*files_, "root", options(100), log_);
    for (int64_t step = 1; step <= 9; ++step) save(checkpoints, step);
  }
  pin(*files_, "root", ref(2));
  const auto lease = lease_on(3);
  const auto numbers = [](const std::vector<StepRef>& refs) {
    std::vector<int64_t> steps;
    for (const StepRef& ref : refs) steps.push_back(ref.step);
    return steps;
  };
  EXPECT_EQ(numbers(steps_to_prune(*files_, "root", 2, 4)), (std::vector<int64_t>{1, 3, 5, 6, 7}));
  EXPECT_EQ(steps_in(*files_).size(), 9u);
  EXPECT_EQ(numbers(prune(*files_, "root", 2, 4, log_)), (std::vector<int64_t>{1, 5, 6, 7}));
  EXPECT_EQ(steps_in(*files_), (std::vector<int64_t>{2, 3, 4, 8, 9}));
}

TEST_F(Readers, ARunGoesBackOnPurpose) {
  {
    Checkpointer checkpoints(*files_, "root", options(100), log_);
    for (int64_t step = 1; step <= 5; ++step) save(checkpoints, step);
  }
  const auto refusal = [&](int64_t step, bool supersede) {
    return message_of(ErrorKind::kConfig, [&] { rewind(*files_, "root", step, supersede, log_); });
  };
  EXPECT_EQ(refusal(7, true), "root holds no step 7; it holds steps 1, 2, 3, 4, 5");
  EXPECT_NE(refusal(2, false).find("root holds steps newer than 2: 3, 4, 5; set them aside"),
            std::string::npos);
  pin(*files_, "root", ref(4));
  EXPECT_NE(refusal(2, true).find("step-000000000004 is pinned or being read"), std::string::npos);
  unpin(*files_, "root", ref(4));
  rewind(*files_, "root", 5, false, log_);  // it is the newest
  EXPECT_EQ(steps_in(*files_).size(), 5u);
  rewind(*files_, "root", 2, true, log_);
  EXPECT_EQ(steps_in(*files_), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(files_->list("root/.superseded").size(), 3u);
  Checkpointer checkpoints(*files_, "root", options(1), log_);
  EXPECT_EQ(checkpoints.newest()->step, 2);
  for (int64_t step = 3; step <= 4; ++step) save(checkpoints, step);
  ASSERT_EQ(files_->list("root/.superseded").size(), 2u);
  for (const std::string& name : files_->list("root/.superseded"))
    EXPECT_FALSE(name.starts_with(step_name(3))) << name;
  for (int64_t step = 5; step <= 6; ++step) save(checkpoints, step);
  EXPECT_TRUE(files_->list("root/.superseded").empty());
}

TEST_F(Readers, ADamagedStepIsNotGoneBackTo) {
  {
    Checkpointer checkpoints(*files_, "root", options(100), log_);
    for (int64_t step = 1; step <= 2; ++step) save(checkpoints, step);
  }
  overwrite(*files_, "root/" + step_name(1) + "/" + kManifestName, "{}");
  const std::string message =
      message_of(ErrorKind::kCorrupt, [&] { rewind(*files_, "root", 1, true, log_); });
  EXPECT_NE(message.find("step-000000000001 is damaged: "), message.npos) << message;
  EXPECT_EQ(steps_in(*files_).size(), 2u);
}

// A long random life of a root: saves, readers that come, go and are killed, pins, pruning, power
// cuts at any call, new starts.  After every operation whatever is read or pinned is there, and so
// is the newest step that was promised; it loads, and the newest verified one too.
class Life : public Readers {
 protected:
  explicit Life() : draw_(5, "life") { start(); }
  void start() {
    crash_at_ = -1;
    calls_ = 0;
    disk_ = faulty_files(*files_, [this](int64_t, std::string_view, const std::string&) {
      return calls_++ == crash_at_ ? Fault::kCrash : Fault::kNone;
    });
    CheckpointOptions how = options(1 + draw_.below(3));
    how.keep_every = draw_.below(2) * 5;
    trainer_.emplace(*disk_, "root", how, log_);
    newest_ = std::max(newest_, trainer_->newest() ? trainer_->newest()->step : 0);
  }
  StepRef any() {
    const std::vector<StepRef> steps = committed_steps(*files_, "root");
    return steps[size_t(draw_.below(int64_t(steps.size())))];
  }
  void save_next() {
    const int64_t step = std::max(newest_, trainer_->newest() ? trainer_->newest()->step : 0) + 1;
    save(*trainer_, step);
    newest_ = step;
  }
  void crash() {
    crash_at_ = calls_ + draw_.below(150);
    try {
      save_next();
      save_next();
    } catch (const Error&) {
    }
    restart();
  }
  void restart() {
    trainer_.reset();
    start();
  }
  void kill_a_reader() {
    LeaseHolder dead = draw_.below(2) ? process_on("b") : this_process();
    dead.started += 1;
    dead.refresh_s = 10;
    const StepRef ref = any();
    const std::string guard = guard_path("root", ref.step, ref.attempt);
    if (files_->stat(guard))
      overwrite(*files_, join(guard, to_text(random_id()) + ".json"), lease_text(dead, 1));
  }
  void operate() {
    const int64_t dice = draw_.below(100);
    if (dice < 30) {
      save_next();
    } else if (dice < 45) {
      const StepRef ref = any();
      if (auto lease = ReaderLease::take(*files_, "root", ref); lease && lease->held())
        leases_.emplace(ref.step, std::move(lease));
    } else if (dice < 62) {
      if (!leases_.empty()) leases_.erase(leases_.begin());
    } else if (dice < 68) {
      const StepRef ref = any();
      pin(*files_, "root", ref);
      pins_.insert(ref.step);
    } else if (dice < 77) {
      if (pins_.empty()) return;
      unpin(*files_, "root", ref(*pins_.begin()));
      pins_.erase(pins_.begin());
    } else if (dice < 84) {
      kill_a_reader();
    } else if (dice < 90) {
      now_s_ += 61;
    } else if (dice < 93) {
      trainer_.reset();
      prune(*files_, "root", 1 + draw_.below(3), 0, log_);
      start();
    } else if (dice < 97) {
      crash();
    } else {
      restart();
    }
  }
  void check() {
    const std::vector<int64_t> steps = steps_in(*files_);
    const auto has = [&](int64_t step) {
      return std::find(steps.begin(), steps.end(), step) != steps.end();
    };
    ASSERT_FALSE(steps.empty());
    ASSERT_GE(steps.back(), newest_);
    for (const auto& [step, lease] : leases_) ASSERT_TRUE(has(step)) << "read: " << step;
    for (const int64_t step : pins_) ASSERT_TRUE(has(step)) << "pinned: " << step;
    int64_t verified = -1;
    for (const StepRef& ref : committed_steps(*files_, "root"))
      if (is_verified(*files_, "root", ref)) verified = ref.step;
    for (const int64_t step : std::set<int64_t>{steps.back(), verified}) {
      if (step < 0 || ref(step).attempt == read_[step]) continue;  // a step does not change
      const std::string directory = "root/" + step_name(step);
      ASSERT_TRUE(verify_step(*files_, directory, VerifyLevel::kDeep, log_).ok()) << directory;
      read_[step] = ref(step).attempt;
    }
  }

  Draw draw_;
  std::unique_ptr<FileSystem> disk_;
  int64_t calls_ = 0, crash_at_ = -1, newest_ = 0;
  std::optional<Checkpointer> trainer_;
  std::map<int64_t, std::unique_ptr<ReaderLease>> leases_;
  std::set<int64_t> pins_;
  std::map<int64_t, std::string> read_;  // attempts of steps that were read whole
};

TEST_F(Life, WhatIsReadOrPinnedStaysAndTheNewestLoads) {
  save_next();
  size_t most = 0;
  const int64_t count = rounds_of("ASHLAR_LIFE_OPERATIONS", 4'000);
  for (int64_t i = 0; i < count && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(fmt::format("operation {}", i));
    operate();
    check();
    most = std::max(most, steps_in(*files_).size());
  }
  // Nothing is kept for ever but what somebody wants.
  leases_.clear();
  while (!pins_.empty()) {
    unpin(*files_, "root", ref(*pins_.begin()));
    pins_.erase(pins_.begin());
  }
  trainer_.reset();
  for (int i = 0; i < 2; ++i) {
    now_s_ += 400;
    trainer_.emplace(*files_, "root", options(1), log_);
    for (int j = 0; j < 4; ++j) {
      save_next();
      now_s_ += 400;
    }
    trainer_.reset();
  }
  EXPECT_LE(steps_in(*files_).size(), 2u);
  EXPECT_GT(most, 4u);
}

// A run removes the step at any call of a look at it: then it is called removed, never damaged.
TEST_F(Readers, AStepThatGoesWhileItIsNamedIsCalledRemoved) {
  const std::string path = "root/" + step_name(1);
  const auto verify = [&](FileSystem& files) {
    const VerifyReport report = verify_named(files, path, VerifyLevel::kDeep, log_);
    ASSERT_TRUE(report.ok()) << report.findings[0].message;
  };
  const auto load = [&](FileSystem& files) {
    ASSERT_TRUE(is_checkpoint(files, path));
    TinyRun loaded;
    open_checkpoint(files, path, log_).load(loaded.all());
  };
  for (const bool loads : {false, true}) {
    int removed = 0, good = 0;
    bool reached = true;
    for (int64_t when = 0; reached; ++when) {
      SCOPED_TRACE(fmt::format("{} at call {}", loads ? "load" : "verify", when));
      ASSERT_LT(when, 1000);
      files_ = memory_files();
      Checkpointer checkpoints(*files_, "root", options(1), log_);
      save(checkpoints, 1);
      reached = false;
      const auto files =
          faulty_files(*files_, [&](int64_t call, std::string_view, const std::string&) {
            if (call != when) return Fault::kNone;
            reached = true;
            save(checkpoints, 2);
            return Fault::kNone;
          });
      try {
        loads ? load(*files) : verify(*files);
        ++good;
      } catch (const Error& error) {
        ++removed;
        EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
        EXPECT_NE(std::string(error.what()).find(path + ": there is no such step: it was removed"),
                  std::string::npos)
            << error.what();
      }
      if (HasFailure()) return;
    }
    EXPECT_GT(removed, 2);
    EXPECT_GT(good, 20);
  }
}

TEST_F(Readers, AStepUnderTheNameOfAnotherIsFound) {
  {
    Checkpointer checkpoints(*files_, "root", options(9), log_);
    save(checkpoints, 8);
    save(checkpoints, 12);
  }
  files_->remove_all("root/" + step_name(12));
  files_->rename_new("root/" + step_name(8), "root/" + step_name(12));
  const std::string found =
      "root/step-000000000012: COMMIT is of step 8, but its directory is named as step 12";
  for (const auto level : {VerifyLevel::kQuick, VerifyLevel::kFiles, VerifyLevel::kDeep}) {
    for (const char* end : {"", "/"}) {
      const VerifyReport report = verify_named(*files_, "root/" + step_name(12) + end, level, log_);
      ASSERT_EQ(report.findings.size(), 1u);
      EXPECT_NE(report.findings[0].message.find("COMMIT is of step 8, but its directory"),
                std::string::npos);
    }
    const auto infos = list_steps(*files_, "root", level, log_);
    EXPECT_EQ(infos.at(0).problem, found);
  }
  // A copy elsewhere has no step's name to be wrong.
  files_->rename_new("root/" + step_name(12), "copy");
  EXPECT_TRUE(verify_named(*files_, "copy", VerifyLevel::kDeep, log_).ok());
}

}  // namespace
}  // namespace ashlar::checkpoint
