// The disk's part of a machine's measurement: cold reads of another rank's file, reads that the
// page cache served, slow and wrong disks; the scatter factor and the needs of runs.
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "ashlar/bench/machine/disk.h"
#include "ashlar/bench/machine/session.h"
#include "ashlar/bench/machine/storage.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/json.h"
#include "ashlar/data/indexed.h"
#include "ashlar/spec/recipe.h"
#include "tests/support/forwarding_files.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::bench {
namespace {

using machine::Verdict;
using testing_support::ForwardingFile;
using testing_support::ForwardingFiles;
using testing_support::TemporaryDirectory;

// Rank 0's findings of a quick measurement by two ranks.
Findings measure_quickly(const std::string& directory, FileSystem& files) {
  Findings findings;
  Allocator allocator(Device::kCpu);
  comm::run_ranks(2, {}, allocator, [&](comm::Group& ranks) {
    Threads threads(1);
    Rig rig{ranks, allocator, threads, "thread", "ashlar bench storage", "2026-01-31"};
    rig.quick = true;
    rig.directory = directory;
    StorageOptions options;
    options.file_bytes = 32 << 20;
    options.row_s = 0.02;
    Findings mine = measure_storage(rig, options, files);
    if (rig.leads()) findings = std::move(mine);
  });
  return findings;
}

bool is_read(const Json& row) {
  return row["experiment_name"].get<std::string>().find("read") != std::string::npos;
}

// Notes which thread created and opened which file.
class NotingFiles : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  std::unique_ptr<File> create(const std::string& path) override {
    note(created, path);
    return ForwardingFiles::create(path);
  }
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    note(opened, path);
    return ForwardingFiles::open(path, links);
  }
  void drop_cached_pages(const std::string& path) override { inner_.drop_cached_pages(path); }
  std::set<std::pair<std::thread::id, std::string>> created, opened;

 private:
  void note(auto& list, const std::string& path) {
    const std::lock_guard lock(mutex_);
    list.emplace(std::this_thread::get_id(), path);
  }
  std::mutex mutex_;
};

TEST(MachineStorage, W5ReadsAreColdAndOfAnotherRanksFile) {
  const TemporaryDirectory directory;
  const auto posix = posix_files();
  NotingFiles files(*posix);
  const Findings findings = measure_quickly(directory.path().string(), files);
  EXPECT_TRUE(findings.faults.empty());
  ASSERT_EQ(files.created.size(), 2u);
  ASSERT_EQ(files.opened.size(), 2u);
  for (const auto& own : files.created) EXPECT_FALSE(files.opened.contains(own)) << own.second;
  int reads = 0;
  for (const std::string& text : findings.rows) {
    const Json row = Json::parse(text);
    for (const char* key : {"p50_us", "p99_us", "p999_us", "block", "ranks", "direct"})
      EXPECT_TRUE(row.contains(key)) << text;
    if (!is_read(row)) continue;
    ++reads;
    EXPECT_LE(row["cached_share"], 0.01) << text;
    EXPECT_EQ(row["ranks_shifted_by"], 1);
  }
  EXPECT_EQ(reads, 4);  // two sizes, sequential and random
  ASSERT_EQ(findings.profile.mounts.size(), 1u);
  for (const char* key :
       {"storage.write", "storage.read", "storage.iops", "storage.fsync", "storage.fsync_p99"})
    EXPECT_TRUE(findings.profile.mounts[0].quantities.contains(key)) << key;
}

// Nothing goes past the page cache, nor leaves it.
class CachingFiles : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<ForwardingFile>(inner_.create(path));
  }
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return std::make_unique<ForwardingFile>(inner_.open(path, links));
  }
};

TEST(MachineStorage, W5KeepsNoRateOfReadsThatTheCacheServed) {
  const TemporaryDirectory directory;
  const auto posix = posix_files();
  CachingFiles files(*posix);
  const Findings findings = measure_quickly(directory.path().string(), files);
  for (const std::string& text : findings.rows) {
    const Json row = Json::parse(text);
    if (is_read(row)) {
      EXPECT_GT(row["cached_share"], 0.9) << text;
    }
  }
  ASSERT_EQ(findings.profile.mounts.size(), 1u);
  const auto& kept = findings.profile.mounts[0].quantities;
  EXPECT_FALSE(kept.contains("storage.read"));
  EXPECT_FALSE(kept.contains("storage.iops"));
  EXPECT_TRUE(kept.contains("storage.write"));
  for (const machine::RateCurve& curve : findings.profile.rates)
    EXPECT_EQ(curve.subject.find("read"), std::string::npos) << curve.subject;
  EXPECT_NE(findings.text.find("stays in the cache: says nothing about the disk"),
            std::string::npos);
}

// Every call takes some milliseconds more, and may change what it reads.
class WeakFile : public ForwardingFile {
 public:
  WeakFile(std::unique_ptr<File> inner, int delay_ms, bool flips)
      : ForwardingFile(std::move(inner)), delay_(delay_ms), flips_(flips) {}
  void read_at(std::span<std::byte> out, int64_t offset) const override {
    std::this_thread::sleep_for(delay_);
    inner_->read_direct(out, offset);
    if (flips_) out[out.size() / 2] ^= std::byte{1};
  }
  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    std::this_thread::sleep_for(delay_);
    inner_->write_direct(bytes, offset);
  }
  void sync() override {
    std::this_thread::sleep_for(delay_);
    inner_->sync();
  }

 private:
  const std::chrono::milliseconds delay_;
  const bool flips_;
};
class WeakFiles : public ForwardingFiles {
 public:
  WeakFiles(FileSystem& inner, int delay_ms, bool flips)
      : ForwardingFiles(inner), delay_ms_(delay_ms), flips_(flips) {}
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<WeakFile>(inner_.create(path), delay_ms_, flips_);
  }
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return std::make_unique<WeakFile>(inner_.open(path, links), delay_ms_, flips_);
  }
  void drop_cached_pages(const std::string& path) override { inner_.drop_cached_pages(path); }

 private:
  const int delay_ms_;
  const bool flips_;
};

TEST(MachineStorage, ASlowDiskIsNamed) {
  const TemporaryDirectory directory;
  const auto posix = posix_files();
  WeakFiles slow(*posix, 30, false);
  const Findings before = measure_quickly(directory.path().string(), *posix);
  const Findings now = measure_quickly(directory.path().string(), slow);
  const auto judgements = judge_findings("storage", now, {0.0, ""}, &before.profile);
  EXPECT_EQ(machine::worst_of(judgements), Verdict::kBad);
  int bad = 0;
  for (const machine::Judgement& j : judgements) {
    if (j.verdict != Verdict::kBad) continue;
    ++bad;
    EXPECT_FALSE(j.hint.empty()) << j.name;
  }
  EXPECT_GE(bad, 3);
}

TEST(MachineStorage, WrongBytesAreCounted) {
  const TemporaryDirectory directory;
  const auto posix = posix_files();
  WeakFiles files(*posix, 0, true);
  const Findings findings = measure_quickly(directory.path().string(), files);
  ASSERT_FALSE(findings.faults.empty());
  EXPECT_GT(findings.faults[0].num_wrong, 0);
}

// A run over one dataset of so many sequences of 4 KiB.
Recipe run_over(FileSystem& files, const std::string& prefix, int64_t sequences,
                int64_t global_batch) {
  Outputs outputs(files, {prefix + ".bin", prefix + ".idx"}, {}, Existing::kReplace);
  data::IndexedWriter writer(outputs, prefix, data::TokenType::kI32);
  writer.add(std::vector<int32_t>(size_t(sequences * 1024 + 1), 7));
  writer.seal();
  outputs.publish();
  return load_recipe(
      ASHLAR_FIXTURES "/recipes/tiny.toml",
      std::vector<std::string>{"data.train=" + prefix, "data.validation_fraction=0",
                               "data.sequence_length=1024", "model.max_position_embeddings=1024",
                               "train.micro_batch=1",
                               fmt::format("train.global_batch={}", global_batch)});
}

TEST(MachineStorage, ScatterCountsThePagesOfTheLoadersOrder) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  const std::string prefix = (directory.path() / "text").string();
  // One sequence is a page and the first token of the next.
  Scatter scatter = measure_scatter(*files, run_over(*files, prefix, 60, 1), 3);
  EXPECT_EQ(scatter.pages, 2);
  EXPECT_EQ(scatter.sigma(), 2);
  EXPECT_EQ(scatter.token_bytes, 4);
  EXPECT_EQ(scatter.bytes, 4096);
  // All sequences in any order share these.
  scatter = measure_scatter(*files, run_over(*files, prefix, 60, 60), 2);
  EXPECT_EQ(scatter.pages, 61);
  EXPECT_NEAR(scatter.sigma(), 61.0 / 60, 1e-12);
}

// The example of arXiv 2511.17127, its appendix on storage.
TEST(MachineStorage, NeedsFollowThePublishedExample) {
  StorageNeeds needs{4096, 4096, 4, 1.25, true, 1e12, 100, 2.5};
  const NeedsReport enough = compare_needs(needs, {70000, 10, 5});
  ASSERT_EQ(enough.judgements.size(), 3u);
  for (const machine::Judgement& j : enough.judgements) EXPECT_EQ(j.verdict, Verdict::kGood);
  EXPECT_NE(enough.text.find("in 20480 pages (scatter 1.250, measured)"), std::string::npos)
      << enough.text;
  EXPECT_NE(enough.text.find("steps shorter than 0.293 s wait"), std::string::npos) << enough.text;
  EXPECT_EQ(Json::parse(enough.rows.at(0))["needed"], 8192);
  EXPECT_NEAR(Json::parse(enough.rows.at(2))["needed"].get<double>(), 4, 1e-9);

  const NeedsReport slow = compare_needs(needs, {8000, 10, 3});
  EXPECT_EQ(slow.judgements.at(0).verdict, Verdict::kBad);
  EXPECT_EQ(slow.judgements.at(1).verdict, Verdict::kGood);
  EXPECT_EQ(slow.judgements.at(2).verdict, Verdict::kBad);
  EXPECT_NE(slow.judgements.at(2).hint.find("checkpoint.every"), std::string::npos);

  const NeedsReport unknown = compare_needs(needs, {std::nullopt, 10, 5});
  EXPECT_EQ(unknown.judgements.size(), 2u);  // no word about what was not measured
  EXPECT_NE(unknown.text.find("what the disk gives is unknown"), std::string::npos);
  needs.step_s = 0;
  EXPECT_TRUE(compare_needs(needs, {70000, 10, 5}).judgements.empty());
}

}  // namespace
}  // namespace ashlar::bench
