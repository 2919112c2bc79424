// Which bytes of a step pass by the system's memory: those of large files on the way out, and in
// where whoever loads asks for it.
#include <gtest/gtest.h>

#include <atomic>

#include "ashlar/checkpoint/writers/read_back.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/support/forwarding_files.h"

namespace ashlar::checkpoint {
namespace {

struct Counted {
  std::atomic<int64_t> direct_written = 0, written = 0, direct_read = 0, read = 0;
  std::atomic<bool> all_laid_out = true;  // what direct calls were for
};

class CountedFile : public testing_support::ForwardingFile {
 public:
  CountedFile(std::unique_ptr<File> inner, Counted& counted)
      : ForwardingFile(std::move(inner)), counted_(counted) {}
  void read_at(std::span<std::byte> out, int64_t offset) const override {
    counted_.read += int64_t(out.size());
    inner_->read_at(out, offset);
  }
  void read_direct(std::span<std::byte> out, int64_t offset) const override {
    counted_.direct_read += int64_t(out.size());
    look(out.data(), offset);
    inner_->read_direct(out, offset);
  }
  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    counted_.written += int64_t(bytes.size());
    inner_->write_at(bytes, offset);
  }
  void write_direct(std::span<const std::byte> bytes, int64_t offset) override {
    counted_.direct_written += int64_t(bytes.size());
    look(bytes.data(), offset);
    inner_->write_direct(bytes, offset);
  }

 private:
  void look(const void* memory, int64_t offset) const {
    if (reinterpret_cast<uintptr_t>(memory) % kDirectBytes != 0 || offset % kDirectBytes != 0)
      counted_.all_laid_out = false;
  }
  Counted& counted_;
};

class CountedBytesFiles : public testing_support::ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return std::make_unique<CountedFile>(inner_.open(path, links), counted);
  }
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<CountedFile>(inner_.create(path), counted);
  }
  Counted counted;
};

class DirectIo : public testing::Test {
 protected:
  // A state of one file of so many bytes, and saves it.
  std::string save(int64_t bytes) {
    state_.add("w", DType::kF32, {bytes / 4 / 64, 64}, Role::kParameter);
    state_.fill(1);
    Log log = quiet_log();
    Checkpointer checkpoints(files_, "root", direct(), log);
    SaveRequest request;
    request.step = 1;
    request.model = state_.pieces();
    checkpoints.save(request);
    return checkpoints.newest()->directory;
  }
  void load(const StepReader& step) {
    const std::vector<std::byte> saved = state_.bytes();
    state_.clear();
    step.load(state_.pieces());
    EXPECT_TRUE(state_.bytes() == saved);
  }

  const std::unique_ptr<FileSystem> memory_ = memory_files();
  CountedBytesFiles files_{*memory_};
  Counted& counted_ = files_.counted;
  State state_;
};

TEST_F(DirectIo, LargeFilesPassByTheSystemsMemoryBothWays) {
  constexpr int64_t kBytes = (int64_t(70) << 20) + 4 * 64 * 100;
  const std::string step = save(kBytes);
  EXPECT_GE(counted_.direct_written, kBytes);
  EXPECT_LT(counted_.written, 100'000);  // index, manifest, COMMIT, timing
  StepReader reader(files_, step);
  reader.set_reads(Reads::kDirect);
  load(reader);
  EXPECT_EQ(counted_.direct_read, counted_.direct_written);
  EXPECT_LT(counted_.read, 200'000);
  Log log = quiet_log();
  EXPECT_EQ(read_back_alone(files_, {1, step, "", ""}, 0, log).bad_rank, -1);
  EXPECT_GE(counted_.direct_read, 2 * counted_.direct_written);
  EXPECT_TRUE(counted_.all_laid_out);
}

TEST_F(DirectIo, SmallFilesStayForWhoeverReadsThemNext) {
  save(int64_t(60) << 20);
  EXPECT_EQ(counted_.direct_written, 0);
  EXPECT_GT(counted_.written, int64_t(60) << 20);
}

TEST_F(DirectIo, WhatIsReadIsKeptUnlessToldOtherwise) {
  const std::string step = save(int64_t(70) << 20);
  load(StepReader(files_, step));
  EXPECT_EQ(counted_.direct_read, 0);
  EXPECT_GT(counted_.read, int64_t(70) << 20);
}

// Three eighths of the rows are 26.25 MiB: six chunks and a part of the seventh.
TEST_F(DirectIo, ToolsKeepTheChunksOfWhichALoadWantsAPart) {
  constexpr int64_t kBytes = int64_t(70) << 20;
  const std::string step = save(kBytes);
  Log log = quiet_log();
  const StepReader reader = open_checkpoint(files_, step, log);
  load(reader);
  EXPECT_GE(counted_.direct_read, kBytes);
  EXPECT_LT(counted_.read, 200'000);
  counted_.direct_read = counted_.read = 0;
  Piece part = state_.pieces().front();
  part.box.length[0] = part.box.length[0] / 8 * 3;
  part.data = part.data.slice(0, part.box.length[0]);
  reader.load(std::span(&part, 1));
  EXPECT_EQ(counted_.direct_read, 6 * kChunkBytes);
  EXPECT_EQ(counted_.read, kChunkBytes);
}

}  // namespace
}  // namespace ashlar::checkpoint
