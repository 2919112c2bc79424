// Many ranks load one step together: what is read, asked and exchanged, and what damage does.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/load/load_plan.h"
#include "ashlar/checkpoint/load/wanted_bytes.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/clock.h"
#include "ashlar/train/group_load_ranks.h"
#include "tests/checkpoint/load_state.h"
#include "tests/support/counting_files.h"
#include "tests/support/forwarding_files.h"

namespace ashlar::train {
namespace {

using namespace checkpoint;
using ashlar::testing_support::CountingFiles;

const std::string kStep = "root/" + step_name(1);

struct CutCase {
  Cut before, after;
  std::vector<Shape> shapes;
  std::string name() const {
    return fmt::format("{} {} to {} {}", before.name, before.num_ranks, after.name,
                       after.num_ranks);
  }
};

std::vector<CutCase> cut_cases() {
  // About 30 MB, of many chunks, and small odd ones; for 64 copies 6 MB.
  const std::vector<Shape> many{{1024, 2048}, {64, 3, 4099}, {1 << 20}, {24, 32}, {2048, 1000}};
  const std::vector<Shape> few{{512, 1500}, {37, 64}, {64, 3, 3001}, {71}};
  return {{contiguous(4), copies(64), few},           {copies(1), tensor_parallel(8), many},
          {tensor_parallel(8), copies(1), many},      {contiguous(8), contiguous(3), many},
          {bucketed(4, 300001), contiguous(4), many}, {contiguous(3), contiguous(3), many}};
}

// Ranks of one process that load as those of several do, whose memory others do not see.
class Apart final : public LoadRanks {
 public:
  explicit Apart(comm::Group& ranks) : inner_(ranks) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string from_leader(std::string bytes) override { return inner_.from_leader(bytes); }
  std::vector<std::string> all_gather(std::string_view bytes) override {
    return inner_.all_gather(bytes);
  }
  void post(std::vector<Message> sends, std::vector<Message> receives) override {
    inner_.post(std::move(sends), std::move(receives));
  }
  void wait() override { inner_.wait(); }
  bool shares_memory() const override { return false; }
  LoadCommons& commons() override { return commons_; }

 private:
  GroupLoadRanks inner_;
  LoadCommons commons_;
};

enum class Memory { kShared, kApart };
constexpr Memory kMemories[] = {Memory::kShared, Memory::kApart};

std::unique_ptr<LoadRanks> load_ranks_of(comm::Group& ranks, Memory memory) {
  if (memory == Memory::kApart) return std::make_unique<Apart>(ranks);
  return std::make_unique<GroupLoadRanks>(ranks);
}

std::vector<LoadReport> load_together(FileSystem& files, const CutModel& model, const Cut& cut,
                                      int reads_in_flight = 2, Memory memory = Memory::kShared) {
  std::vector<LoadReport> reports(size_t(cut.num_ranks));
  Allocator allocator(Device::kCpu);
  comm::Options options;
  options.staging_bytes = int64_t(1) << 20;
  comm::run_ranks(cut.num_ranks, options, allocator, [&](comm::Group& ranks) {
    const auto load_ranks = load_ranks_of(ranks, memory);
    State state = model.state(cut, ranks.rank());
    const StepReader reader(files, kStep, load_ranks.get());
    LoadOptions load;
    load.reads_in_flight = reads_in_flight;
    reports[size_t(ranks.rank())] = reader.load(state.pieces(), load);
    EXPECT_EQ(CutModel::num_wrong(state), 0) << "on rank " << ranks.rank();
    EXPECT_EQ(reader.read_blob("notes.txt"), "of all");
  });
  return reports;
}

// The traffic by load_plan.h, from boxes alone.
int64_t expected_traffic(FileSystem& files, const CutModel& model, const Cut& cut) {
  const StepReader reader(files, kStep);
  const ChunkNumbers chunks(reader.index());
  std::map<int64_t, std::set<int>> wanted;
  for (int rank = 0; rank < cut.num_ranks; ++rank) {
    State state = model.state(cut, rank);
    for (const Piece& piece : state.pieces())
      for (const IndexBox& box : reader.find(piece.logical.name)->boxes) {
        const auto part = intersect(box.box, piece.box);
        if (!part) continue;
        for (Runs runs(*part, box.box, piece.box); !runs.done(); runs.next()) {
          const int64_t begin = box.byte_offset + 4 * runs.from();
          const int64_t end = begin + 4 * runs.length();
          for (int64_t c = begin / kChunkBytes; c <= (end - 1) / kChunkBytes; ++c)
            wanted[chunks.first(box.file) + c].insert(rank);
        }
      }
  }
  int64_t total = 0, before = 0, traffic = 0;
  for (const auto& [chunk, ranks] : wanted) total += chunks.bytes(chunk);
  for (const auto& [chunk, ranks] : wanted) {
    const int reader_rank = int(before * cut.num_ranks / total);
    traffic += padded(chunks.bytes(chunk)) * int64_t(ranks.size() - ranks.count(reader_rank));
    before += chunks.bytes(chunk);
  }
  return traffic;
}

TEST(LoadTogether, EachByteIsReadOnceAndExchangedAsTheFormulaSays) {
  for (const CutCase& c : cut_cases()) {
    SCOPED_TRACE(c.name());
    const auto disk = memory_files();
    const CutModel model(c.shapes);
    model.save(*disk, c.before);
    for (const Memory memory : kMemories) {
      SCOPED_TRACE(memory == Memory::kShared ? "shared memory" : "apart");
      CountingFiles files(*disk);
      const auto reports = load_together(files, model, c.after, 2, memory);
      const int64_t n = c.after.num_ranks;
      const auto num_files = int64_t(StepReader(*disk, kStep).index().files.size());
      int64_t read = 0, sent = 0, received = 0, most_read = 0;
      for (const LoadReport& report : reports) {
        read += report.bytes_read;
        sent += report.sent_bytes;
        received += report.received_bytes;
        most_read = std::max(most_read, report.bytes_read);
        EXPECT_LE(report.buffer_bytes, int64_t(memory == Memory::kShared ? 32 : 64) << 20);
      }
      EXPECT_LE(double(read), 1.05 * double(model.bytes()));
      EXPECT_GE(read, model.bytes());
      EXPECT_LE(most_read, read / n + kChunkBytes);
      EXPECT_LE(double(files.bytes_read), 1.05 * double(model.bytes()));  // and all metadata
      EXPECT_LE(files.metadata_calls, 3 * num_files + 10 * n);
      EXPECT_EQ(sent, received);
      EXPECT_EQ(received, memory == Memory::kShared ? 0 : expected_traffic(*disk, model, c.after));
      fmt::print("{}: {} files, {:.3f} of the bytes read, {:.2f} exchanged, {} calls of {}\n",
                 c.name(), num_files, double(files.bytes_read) / double(model.bytes()),
                 double(received) / double(model.bytes()), files.metadata_calls.load(),
                 3 * num_files + 10 * n);
    }
  }
}

// The reader copies to all ranks of the process, but to none that has left.
TEST(LoadTogether, ARankThatLeavesIsNotWrittenToAnyMore) {
  const auto disk = memory_files();
  const CutModel model({{64, 1000}});
  model.save(*disk, contiguous(1));
  const StepReader reader(*disk, kStep);
  const ChunkNumbers chunks(reader.index());
  const std::string text = read_all(*disk, join(kStep, reader.index().files[0].path));
  const Cut all = copies(3);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(3, {}, allocator, [&](comm::Group& ranks) {
    GroupLoadRanks load_ranks(ranks);
    State state = model.state(all, ranks.rank());
    const std::vector<Piece> pieces = state.pieces();
    const WantedBytes wanted(reader, chunks, pieces);
    std::optional<SharedWantedBytes> shared(std::in_place, load_ranks, wanted);
    const auto read = [&](int by) {
      ranks.barrier("all are ready").wait();
      if (ranks.rank() == by) shared->copy(0, 0, std::as_bytes(std::span(text)));
      ranks.barrier("read").wait();
    };
    const auto clear = [&] { std::memset(pieces[0].data.data, 0, size_t(pieces[0].data.bytes())); };
    clear();
    read(0);
    EXPECT_EQ(CutModel::num_wrong(state), 0) << "on rank " << ranks.rank();
    clear();
    if (ranks.rank() == 1) shared.reset();
    read(2);
    if (ranks.rank() == 1)
      EXPECT_EQ(CutModel::num_wrong(state), 64'000);
    else
      EXPECT_EQ(CutModel::num_wrong(state), 0) << "on rank " << ranks.rank();
  });
}

class LoadTogetherDamaged : public testing::Test {
 protected:
  void SetUp() override { model_.save(*disk_, contiguous(3)); }
  // The files that a load reads, in the order of the index.
  std::vector<IndexFile> files_of_tensors() const {
    std::vector<IndexFile> files = StepReader(*disk_, kStep).index().files;
    std::erase_if(files, [](const IndexFile& f) { return f.kind != FileKind::kSafetensors; });
    return files;
  }
  void flip(const IndexFile& file, int64_t at) {
    const std::string path = join(kStep, file.path);
    std::string text = read_all(*disk_, path);
    char& byte = text.at(size_t(at));
    byte = char(byte ^ 4);
    overwrite(*disk_, path, text);
  }
  // Every rank throws the same, and this is it.
  std::string said(FileSystem& files, ErrorKind kind, const Cut& cut, bool strange = false) {
    std::mutex mutex;
    std::set<std::string> messages;
    Allocator allocator(Device::kCpu);
    for (const Memory memory : kMemories)
      comm::run_ranks(cut.num_ranks, {}, allocator, [&](comm::Group& ranks) {
        const auto load_ranks = load_ranks_of(ranks, memory);
        State state = model_.state(cut, ranks.rank());
        if (strange && ranks.rank() == 2) state.pieces()[1].logical.name = "other";
        const std::string message = ashlar::testing_support::message_of(
            kind, [&] { StepReader(files, kStep, load_ranks.get()).load(state.pieces()); });
        const std::lock_guard lock(mutex);
        messages.insert(message);
      });
    EXPECT_EQ(messages.size(), 1u);
    return *messages.begin();
  }
  std::unique_ptr<FileSystem> disk_ = memory_files();
  const CutModel model_{{{1024, 2048}, {64, 3, 4099}, {1 << 20}}};
};

TEST_F(LoadTogetherDamaged, AllRanksNameTheFirstDamageInTheOrderOfFiles) {
  const std::vector<IndexFile> files = files_of_tensors();
  ASSERT_GE(files.size(), 3u);
  const std::string first = files[0].path;
  flip(files[2], 5000);
  flip(files[0], kChunkBytes + 77);
  flip(files[0], files[0].size_bytes - 1);
  for (const Cut& cut : {copies(1), copies(4), tensor_parallel(5), contiguous(3), bucketed(2, 999)})
    for (int round = 0; round < 5; ++round)
      EXPECT_NE(said(*disk_, ErrorKind::kCorrupt, cut).find(first + ": chunk 1 (bytes"),
                std::string::npos)
          << cut.name;
}

TEST_F(LoadTogetherDamaged, SoDoAMissingFileAndAnIndexThatOnlyTheLeaderReads) {
  const std::string path = join(kStep, StepReader(*disk_, kStep).index().files[1].path);
  const std::string text = read_all(*disk_, path);
  disk_->remove(path);
  EXPECT_EQ(said(*disk_, ErrorKind::kCorrupt, copies(4)), path + ": the file is missing");
  overwrite(*disk_, path, text + "x");
  EXPECT_NE(said(*disk_, ErrorKind::kCorrupt, copies(4)).find("bytes; "), std::string::npos);
  overwrite(*disk_, join(kStep, kIndexName), "no index");
  EXPECT_NE(said(*disk_, ErrorKind::kCorrupt, copies(4)).find("8 bytes"), std::string::npos);
}

TEST_F(LoadTogetherDamaged, WhatOneRankWantsInVainOrCannotReadAllTell) {
  EXPECT_NE(said(*disk_, ErrorKind::kConfig, copies(4), true).find("missing there: other"),
            std::string::npos);
  const auto faulty =
      faulty_files(*disk_, [](int64_t, std::string_view operation, const std::string& path) {
        return operation == "read" && path.find("shard-00002") != path.npos ? Fault::kIoError
                                                                            : Fault::kNone;
      });
  EXPECT_NE(said(*faulty, ErrorKind::kStorage, tensor_parallel(4)).find("shard-00002"),
            std::string::npos);
}

// Gives all readers together so many bytes a second, as storage that many machines share does.
class FilesOfARate : public ashlar::testing_support::ForwardingFiles {
 public:
  FilesOfARate(FileSystem& inner, double bytes_per_s)
      : ForwardingFiles(inner), bytes_per_s_(bytes_per_s) {}
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return std::make_unique<FileOfARate>(inner_.open(path, links), *this);
  }

 private:
  class FileOfARate : public ashlar::testing_support::ForwardingFile {
   public:
    FileOfARate(std::unique_ptr<File> inner, FilesOfARate& all)
        : ForwardingFile(std::move(inner)), all_(all) {}
    void read_at(std::span<std::byte> out, int64_t offset) const override {
      inner_->read_at(out, offset);
      all_.take(int64_t(out.size()));
    }

   private:
    FilesOfARate& all_;
  };

  // Returns when the storage, which serves one after the other, is done with so many bytes more.
  void take(int64_t bytes) {
    using Clock = std::chrono::steady_clock;
    const auto takes = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(double(bytes) / bytes_per_s_));
    std::unique_lock lock(mutex_);
    busy_until_ = std::max(busy_until_, Clock::now()) + takes;
    const auto until = busy_until_;
    lock.unlock();
    std::this_thread::sleep_until(until);
  }

  const double bytes_per_s_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point busy_until_;
};

// Times for a person to compare on an idle machine: ASHLAR_LOAD_MIB of state, from storage that
// gives ASHLAR_LOAD_MIB_PER_S, loaded by one rank and by 64 that want all of it.
TEST(LoadTogether, TimesOfOneRankAndOfSixtyFour) {
  const auto asked = [](const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atof(text) : otherwise;
  };
  const auto mib = int64_t(asked("ASHLAR_LOAD_MIB", 1));
  const double rate = asked("ASHLAR_LOAD_MIB_PER_S", 10);
  const auto disk = memory_files();
  const CutModel model({{mib, 1 << 18}});
  model.save(*disk, contiguous(4));
  FilesOfARate storage(*disk, rate * (1 << 20));
  for (const int ranks : {1, 64}) {
    double seconds = 0;
    for (const LoadReport& report : load_together(storage, model, copies(ranks), 8))
      seconds = std::max(seconds, report.seconds);
    EXPECT_GE(seconds, 0.99 * double(mib) / rate);
    fmt::print("{} MiB at {} MiB/s on {} ranks: {:.3f} s\n", mib, rate, ranks, seconds);
  }
}

}  // namespace
}  // namespace ashlar::train
