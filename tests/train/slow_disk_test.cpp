// Runs whose disk is slow, or stands still, in a save.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/core/clock.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/support/forwarding_files.h"

namespace ashlar::train {
namespace {

Recipe slow_recipe(std::vector<std::string> overrides) {
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

// Every read and sync of a checkpoint's file takes long, or every call on other files of the run;
// other calls go on meanwhile.
class SlowFiles : public ashlar::testing_support::ForwardingFiles {
 public:
  enum class What { kSteps, kRows };
  SlowFiles(FileSystem& inner, What what, int delay_ms)
      : ForwardingFiles(inner), what_(what), delay_ms_(delay_ms) {}
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return slow(inner_.open(path, links), path);
  }
  std::unique_ptr<File> create(const std::string& path) override {
    return slow(inner_.create(path), path);
  }
  std::unique_ptr<File> append(const std::string& path) override {
    return slow(inner_.append(path), path);
  }
  std::atomic<int64_t> slow_calls = 0;

 private:
  struct SlowFile : ashlar::testing_support::ForwardingFile {
    SlowFile(std::unique_ptr<File> inner, SlowFiles& files)
        : ForwardingFile(std::move(inner)), files(files) {}
    void write_at(std::span<const std::byte> bytes, int64_t offset) override {
      if (files.what_ == What::kRows) files.linger();
      inner_->write_at(bytes, offset);
    }
    void read_at(std::span<std::byte> out, int64_t offset) const override {
      files.linger();
      inner_->read_at(out, offset);
    }
    void sync() override {
      files.linger();
      inner_->sync();
    }
    SlowFiles& files;
  };
  std::unique_ptr<File> slow(std::unique_ptr<File> file, const std::string& path) {
    const bool of_step = path.find("/step-") != path.npos || path.find("/.tmp-") != path.npos;
    const bool of_run = path.starts_with("run/") && path.find("/checkpoints/") == path.npos;
    if (what_ == What::kSteps ? !of_step : !of_run) return file;
    return std::make_unique<SlowFile>(std::move(file), *this);
  }
  void linger() {
    ++slow_calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms_));
  }
  const What what_;
  const int delay_ms_;
};

// Each thing that rank 0 does alone, and each save, takes longer than collectives wait.
TEST(Saves, ADiskMayBeSlowerThanCollectivesArePatient) {
  const auto disk = memory_files();
  data::write_documents(*disk, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
  SlowFiles files(*disk, SlowFiles::What::kSteps, 60);
  std::string said;
  Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
  const auto train = [&](int64_t steps) {
    return start_run(slow_recipe({"data.train=text", "data.tokenizer=byte", "train.run_dir=run",
                                  fmt::format("train.steps={}", steps), "train.eval_every=0",
                                  "checkpoint.every=1", "parallel.timeout_s=0.5"}),
                     files, log, {.num_ranks = 2, .report = {}});
  };
  EXPECT_EQ(train(4), Outcome::kDone);  // the fourth save waits for the first two
  // As after a kill, so that the newest step is read whole.
  disk->make_directories("run/checkpoints/.lease");
  write_text(*disk, "run/checkpoints/.lease/trainer.json", "torn");
  files.slow_calls = 0;
  EXPECT_EQ(train(5), Outcome::kDone);
  EXPECT_NE(said.find("continuing after step 4 "), said.npos) << said;
  EXPECT_GT(files.slow_calls, 30);
}

// Recipe, rows and board take longer to write than collectives wait, and a step takes no time.
TEST(Saves, FilesThatRankZeroWritesAloneMayBeSlowToo) {
  const auto disk = memory_files();
  data::write_documents(*disk, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
  SlowFiles files(*disk, SlowFiles::What::kRows, 700);
  Log log([](std::string_view) {});
  EXPECT_EQ(start_run(slow_recipe({"data.train=text", "data.tokenizer=byte", "train.run_dir=run",
                                   "train.steps=3", "train.eval_every=1", "checkpoint.every=2",
                                   "parallel.timeout_s=0.4"}),
                      files, log, {.num_ranks = 2, .report = {}}),
            Outcome::kDone);
  EXPECT_GT(files.slow_calls, 5);
}

struct BlockedTimes {
  double console_s = 0, events_s = 0, rows_s = 0;
  double waits_s = 0;  // of events, in phase "wait"
  int saves = 0;
};

// Rows tell of a save in the step after it: the last save of the run is left out.
BlockedTimes blocked_times(FileSystem& files, const std::string& said, int64_t steps) {
  BlockedTimes times;
  std::istringstream rows(read_text(files, "run/metrics.jsonl"));
  for (std::string line; std::getline(rows, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row.contains("event")) times.rows_s += row.at("checkpoint_blocked_s").get<double>();
    if (row.value("event", "") != "checkpoint" || row.at("step") == steps) continue;
    ++times.saves;
    times.events_s += row.at("blocked_s").get<double>();
    if (row.at("phases").contains("wait"))
      times.waits_s += row.at("phases").at("wait").at("max_s").get<double>();
    EXPECT_LE(row.at("blocked_s").get<double>(), row.at("total_s").get<double>() + 1);
  }
  constexpr std::string_view kBlocked = "training blocked ", kSaved = "  saved ";
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(kBlocked);
    if (at == line.npos || line.starts_with(fmt::format("step {:>6}{}", steps, kSaved))) continue;
    times.console_s += 1e-3 * std::stod(line.substr(at + kBlocked.size()));
  }
  return times;
}

// A disk slower than the steps keeps training waiting: for a place where saves go on in the
// background, else for the whole save.  Console line, event and row say the same of it.
TEST(Saves, AllThatTrainingWaitedIsTold) {
  for (const bool async : {true, false}) {
    for (const int num_ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("async {}, {} ranks", async, num_ranks));
      constexpr int64_t kSteps = 6;
      const auto disk = memory_files();
      data::write_documents(*disk, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
      SlowFiles files(*disk, SlowFiles::What::kSteps, 20);
      std::string said;
      Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
      const auto start = Clock::now();
      start_run(slow_recipe({"data.train=text", "data.tokenizer=byte", "train.run_dir=run",
                             fmt::format("train.steps={}", kSteps), "train.eval_every=0",
                             "checkpoint.every=1", "checkpoint.keep=9", "data.verify=off",
                             fmt::format("checkpoint.async={}", async)}),
                files, log, {.num_ranks = num_ranks, .report = {}});
      const double run_s = seconds_since(start);
      const BlockedTimes times = blocked_times(*disk, said, kSteps);
      EXPECT_EQ(times.saves, kSteps - 1);
      // Three files at least are synced one after another, and what more than two saves take is
      // waited for.
      EXPECT_GT(times.rows_s, (async ? 3 : 5) * 3 * 0.02);
      EXPECT_LT(times.rows_s, run_s);
      EXPECT_NEAR(times.events_s, times.rows_s, 0.02 + 0.02 * times.rows_s);
      EXPECT_NEAR(times.console_s, times.rows_s, 0.02 + 0.02 * times.rows_s);
      // The rest is planning and copying, which a busy machine draws out.
      if (async)
        EXPECT_GT(times.waits_s, 0.5 * times.rows_s);
      else
        EXPECT_LT(times.waits_s, 0.1 * times.rows_s);
    }
  }
}

// The disk of the second writer stands still in a save; then rows of metrics cannot be written.
class StandingWriter : public ashlar::testing_support::ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  std::unique_ptr<File> create(const std::string& path) override {
    if (path.find("/shard-00002") != path.npos) {
      stands = true;
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return inner_.create(path);
  }
  std::unique_ptr<File> append(const std::string& path) override {
    return std::make_unique<FailingFile>(inner_.append(path), *this);
  }
  std::atomic<bool> stands = false, go = false;

 private:
  struct FailingFile : ashlar::testing_support::ForwardingFile {
    FailingFile(std::unique_ptr<File> inner, StandingWriter& files)
        : ForwardingFile(std::move(inner)), files(files) {}
    void write_at(std::span<const std::byte> bytes, int64_t offset) override {
      ASHLAR_REQUIRE(!files.stands, kStorage, "write rows: no room");
      inner_->write_at(bytes, offset);
    }
    StandingWriter& files;
  };
};

// The reason comes first, then a few seconds for the save, then its end without the other writer.
TEST(Saves, AnErrorIsToldBeforeASaveThatStandsStillIsWaitedFor) {
  const auto disk = memory_files();
  data::write_documents(*disk, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
  StandingWriter files(*disk);
  std::mutex mutex;
  std::string said;
  const auto was_said = [&](const char* text) {
    const std::lock_guard lock(mutex);
    return said.find(text) != said.npos;
  };
  Log log([&](std::string_view line) {
    const std::lock_guard lock(mutex);
    said += std::string(line) + "\n";
  });
  // A hundred steps have more rows than wait in memory, so that a failed write is soon found.
  constexpr const char* kEnd =
      "step 100 is not saved: the run ends by an error and waits no longer";
  std::atomic<bool> told = false, ended = false, over = false;
  std::thread disk_of_second([&] {
    for (int i = 0; i < 6000 && !over && !ended; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      told = told || was_said("write rows: no room; before it ends, the run gives its saves 5 s");
      ended = was_said(kEnd);
    }
    files.go = true;
  });
  std::string error;
  try {
    start_run(slow_recipe({"data.train=text", "data.tokenizer=byte", "train.run_dir=run",
                           "train.steps=1000000", "train.eval_every=0", "checkpoint.every=100",
                           "checkpoint.gather_mib=0", "data.verify=off"}),
              files, log, {.num_ranks = 2, .report = {}});
  } catch (const Error& caught) {
    error = caught.what();
  }
  over = true;
  disk_of_second.join();
  EXPECT_NE(error.find("write rows: no room"), error.npos) << error;
  EXPECT_TRUE(told && ended) << said;
  EXPECT_TRUE(checkpoint::committed_steps(*disk, "run/checkpoints").empty());
}

}  // namespace
}  // namespace ashlar::train
