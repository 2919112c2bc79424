// Stale looks: what a file system over a network does not show yet is no damage.
#include "ashlar/checkpoint/format/stale_retry.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <mutex>

#include "ashlar/core/files_error.h"
#include "tests/checkpoint/writers_test_util.h"
#include "tests/support/forwarding_files.h"

namespace ashlar::checkpoint {
namespace {

// Shows a file of a committed step only some time after the first look: until then the name is
// missing, or the size is that of an earlier moment.  Its clock runs while somebody waits.
class LateFiles : public testing_support::ForwardingFiles {
 public:
  LateFiles(FileSystem& inner, double late_s, uint64_t seed)
      : ForwardingFiles(inner), late_s_(late_s), seed_(seed) {}

  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    if (is_late(path) && hides_name(path)) fail_storage("open", path, ENOENT);
    return std::make_unique<LateFile>(inner_.open(path, links), is_late(path));
  }
  std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
    auto info = inner_.stat(path, links);
    if (!info || !is_late(path)) return info;
    if (hides_name(path)) return std::nullopt;
    info->size_bytes /= 2;
    return info;
  }
  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names = inner_.list(path);
    if (hides_parts)
      std::erase_if(names, [](const auto& name) { return name.starts_with("part"); });
    return names;
  }
  double visibility_s(const std::string&) override { return 60; }
  void pause(double seconds) override {
    const std::lock_guard lock(mutex_);
    now_s_ += seconds;
  }
  double now_s() const {
    const std::lock_guard lock(mutex_);
    return now_s_;
  }
  bool hides_parts = false;

 private:
  // Half as large as it will be, and then reads go no further.
  class LateFile : public testing_support::ForwardingFile {
   public:
    LateFile(std::unique_ptr<File> inner, bool late)
        : ForwardingFile(std::move(inner)), late_(late) {}
    int64_t size() const override { return inner_->size() / (late_ ? 2 : 1); }
    void read_at(std::span<std::byte> out, int64_t offset) const override {
      if (late_ && offset + int64_t(out.size()) > size())
        fail_short_read("late", out.size(), offset, size());
      inner_->read_at(out, offset);
    }

   private:
    const bool late_;
  };

  uint64_t draw(const std::string& path) const { return splitmix64(fnv1a64(path) ^ seed_); }
  bool hides_name(const std::string& path) const { return draw(path) & 1; }
  bool is_late(const std::string& path) const {
    const auto info = inner_.stat(path, LinkPolicy::kFollow);
    if (path.find("root/step-") == path.npos || (info && info->type != FileInfo::Type::kFile))
      return false;
    return now_s() < late_s_ * double(draw(path) >> 32) / 4294967296.0;
  }

  const double late_s_;
  const uint64_t seed_;
  mutable std::mutex mutex_;
  double now_s_ = 0;
};

class StaleLooks : public testing::Test {
 protected:
  void SetUp() override {
    Checkpointer checkpoints(*files_, "root", direct(), log_);
    for (int64_t step = 1; step <= 2; ++step) {
      run_.fill(step);
      checkpoints.save(run_.request(step));
    }
  }
  std::string shard(const char* component) const {
    return fmt::format("root/{}/{}/{}", step_name(2), component,
                       files_->list(fmt::format("root/{}/{}", step_name(2), component))[0]);
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_ = quiet_log();
  TinyRun run_;
};

TEST_F(StaleLooks, CondemnNoStep) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    LateFiles late(*files_, 30, seed);
    {
      Checkpointer checkpoints(late, "root", direct(), log_);
      ASSERT_EQ(checkpoints.newest()->step, 2) << seed;
    }
    EXPECT_LE(late.now_s(), 36);  // the last wait may go on a little
    LateFiles again(*files_, 30, seed);
    expect_holds(again, "root/" + step_name(2), 2);
    EXPECT_GT(again.now_s(), 1);
    LateFiles read(*files_, 30, seed);
    EXPECT_TRUE(verify_step(read, "root/" + step_name(2), VerifyLevel::kDeep, log_).ok());
    LateFiles found(*files_, 30, seed);
    EXPECT_EQ(find_newest(found, "root", VerifyLevel::kDeep, log_).newest->step, 2);
  }
  for (const std::string& name : files_->list("root")) EXPECT_NE(name, kBadDirectory);
}

TEST_F(StaleLooks, WhatStaysAwayIsDamageOnceTheTimeIsOver) {
  for (const char* component : {"model", "optim", "loader"}) files_->remove(shard(component));
  LateFiles late(*files_, 0, 1);
  const VerifyReport report = verify_step(late, "root/" + step_name(2), VerifyLevel::kQuick, log_);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_NE(report.findings[0].message.find("the file is missing"), std::string::npos);
  EXPECT_DOUBLE_EQ(late.now_s(), 60);  // not so long for each of them
  EXPECT_EQ(find_newest(late, "root", VerifyLevel::kQuick, log_).newest->step, 1);
}

TEST_F(StaleLooks, WhatCanBeKnownAtOnceIsSaidAtOnce) {
  const std::string path = shard("model");
  std::string text = read_all(*files_, path);
  text[text.size() - 1] ^= 1;
  overwrite(*files_, path, text);
  LateFiles late(*files_, 0, 1);
  EXPECT_FALSE(verify_step(late, "root/" + step_name(2), VerifyLevel::kDeep, log_).ok());
  files_->remove(path);
  files_->make_directories(path);
  EXPECT_NE(verify_step(late, "root/" + step_name(2), VerifyLevel::kQuick, log_)
                .findings[0]
                .message.find("not a plain file"),
            std::string::npos);
  const std::string commit = join("root/" + step_name(2), kCommitName);
  text = read_all(*files_, commit);
  text[20] ^= 1;
  overwrite(*files_, commit, text);
  message_of(ErrorKind::kCorrupt, [&] { StepReader(late, "root/" + step_name(2)); });
  EXPECT_EQ(late.now_s(), 0);
}

// A directory as it was listed before the others wrote their parts.
TEST(StaleLists, DelayNoCommit) {
  const auto files = memory_files();
  LateFiles late(*files, 0, 1);
  late.hides_parts = true;
  Log log = quiet_log();
  Shares shares = Shares::even(3);
  shares.fill(1);
  CheckpointOptions options = direct();
  options.part_timeout_s = 5;
  Writers writers({&late, files.get(), files.get()}, "root", options, log);
  writers.save(shares, 1);
  expect_step(*files, 1, 3);
}

}  // namespace
}  // namespace ashlar::checkpoint
