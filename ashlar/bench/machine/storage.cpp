// The disk under a directory: sequential writes with fsync, cold sequential and random reads, and
// fsync after small writes.  Every rank has a file of its own and reads the next rank's.
//
// Cold     a read counts only if the page cache does not hold the file: the cache is dropped, and
//          mincore says how much it still holds.  Where it keeps the file (tmpfs), rows say so, and
//          the profile gets no rate.  Reads and writes go past the cache where the file system
//          can (core/files.h).
// Checked  every byte that is read is compared with what was written.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "ashlar/bench/machine/part.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/core/rng.h"
#include "ashlar/machine/laws.h"

namespace ashlar::bench {
namespace {

constexpr int64_t kBlock = 4 << 20, kPage = 4096;
constexpr double kMostCached = 0.01;

// The file system of a path: the longest mount point of /proc/self/mounts that begins it.
std::pair<std::string, std::string> mount_of(const std::string& path) {
  std::pair<std::string, std::string> best{"/", "unknown"};
  size_t length = 0;
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, point, type;
    words >> device >> point >> type;
    const bool holds =
        path.starts_with(point) &&
        (point.back() == '/' || path.size() == point.size() || path[point.size()] == '/');
    if (!holds || point.size() < length) continue;
    best = {point, type};
    length = point.size();
  }
  return best;
}

// The file of one rank, removed at the end.
class DiskFile {
 public:
  DiskFile(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {
    file_ = files_.create(path_);
  }
  ~DiskFile() {
    try {
      file_.reset();
      files_.remove(path_);
    } catch (const Error&) {  // the disk has failed already, and that is reported
    }
  }
  File& file() { return *file_; }
  void close() {
    file_->close();
    file_.reset();
  }

 private:
  FileSystem& files_;
  const std::string path_;
  std::unique_ptr<File> file_;
};

// Words of a block of a rank's file.
void fill_block(std::span<uint64_t> words, int rank, int64_t offset) {
  const uint64_t seed = splitmix64(uint64_t(rank) + 1) ^ uint64_t(offset);
  for (size_t i = 0; i < words.size(); ++i) words[i] = splitmix64(seed + i * 8);
}
// A page of a block begins in the middle of it.
int64_t wrong_words(std::span<const uint64_t> words, int rank, int64_t offset) {
  const int64_t block = offset / kBlock * kBlock;
  const uint64_t seed =
      (splitmix64(uint64_t(rank) + 1) ^ uint64_t(block)) + uint64_t(offset - block);
  int64_t wrong = 0;
  for (size_t i = 0; i < words.size(); ++i) wrong += words[i] != splitmix64(seed + i * 8);
  return wrong;
}

// The share of a file that the page cache holds.
double cached_share(FileSystem& files, const std::string& path) {
  const auto mapping = files.map(path);
  const std::span<const std::byte> bytes = mapping->bytes();
  if (bytes.empty()) return 0;
  std::vector<unsigned char> pages((bytes.size() + kPage - 1) / kPage);
  if (mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()) != 0) return 1;
  return double(std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; })) /
         double(pages.size());
}

// One measurement of the disk by all ranks.
struct DiskRow {
  const char* name;
  const char* key;  // of the profile
  const char* unit;
  double value = 0, p10 = 0, p90 = 0;
  double cached = 0;  // share of the data in the cache before it was read
  int64_t num_wrong = 0;
};

class Disk {
 public:
  Disk(const Rig& rig, FileSystem& files)
      : rig_(rig),
        files_(files),
        block_(aligned_memory(kBlock, "a block of a file")),
        bytes_((rig.quick ? int64_t{64} : int64_t{1024}) << 20) {
    bytes_ = std::max(bytes_ / rig.ranks.size() / kBlock, int64_t{1}) * kBlock;
    const int64_t process = comm::from_leader(rig.ranks, getpid(), "process");
    for (int rank = 0; rank < rig.ranks.size(); ++rank)
      paths_.push_back(join(rig.directory, fmt::format("ashlar-storage-{}-{}.tmp", process, rank)));
    mine_.emplace(files_, paths_[size_t(rig.ranks.rank())]);
  }

  DiskRow write() {
    const double seconds = together([&] {
      for (int64_t at = 0; at < bytes_; at += kBlock) {
        fill_block(words(), rig_.ranks.rank(), at);
        mine_->file().write_direct(block(), at);
      }
      mine_->file().sync();
    });
    const double rate = double(bytes_ * rig_.ranks.size()) / seconds * 1e-9;
    return {"sequential write, fsync", "storage.write", "GB/s", rate, rate, rate};
  }

  DiskRow fsync() {
    std::vector<double> us;
    for (int i = 0; i < (rig_.quick ? 10 : 100); ++i) {
      mine_->file().write_at(block().first(kPage), bytes_);
      const auto start = Clock::now();
      mine_->file().sync();
      us.push_back(us_since(start));
    }
    mine_->file().truncate(bytes_);
    mine_->file().sync();
    mine_->close();
    const Repeats r = repeats_of(slowest_of_ranks(rig_.ranks, std::move(us)));
    return {"fsync after 4 KiB", "storage.fsync", "us", r.median, r.p10, r.p90};
  }

  DiskRow read() {
    DiskRow row{"sequential read, cold", "storage.read", "GB/s"};
    row.cached = make_cold();
    const auto file = files_.open(theirs());
    int64_t wrong = 0;
    const double seconds = together([&] {
      for (int64_t at = 0; at < bytes_; at += kBlock) {
        file->read_direct(block(), at);
        wrong += wrong_words(words(), their_rank(), at);
      }
    });
    row.value = row.p10 = row.p90 = double(bytes_ * rig_.ranks.size()) / seconds * 1e-9;
    row.num_wrong = total(wrong);
    return row;
  }

  // Random pages, with kQueue reads of a rank in flight.
  DiskRow random() {
    constexpr int kQueue = 16;
    DiskRow row{"random read of 4 KiB, cold", "storage.iops", "1/s"};
    row.cached = make_cold();
    const auto file = files_.open(theirs());
    std::atomic<int64_t> reads{0}, wrong{0};
    const double limit_s = rig_.quick ? 0.3 : 2;
    const double seconds = together([&] {
      std::vector<std::thread> threads;
      for (int worker = 0; worker < kQueue; ++worker)
        threads.push_back(start_thread("random reads", [&, worker] {
          const AlignedMemory page = aligned_memory(kPage, "a page of a file");
          const Rng rng(uint64_t(worker), "storage");
          const auto start = Clock::now();
          for (uint64_t i = 0; seconds_since(start) < limit_s; ++i, ++reads) {
            const int64_t at = int64_t(rng.below(i, uint64_t(bytes_ / kPage))) * kPage;
            file->read_direct({page.get(), size_t(kPage)}, at);
            wrong += wrong_words({reinterpret_cast<const uint64_t*>(page.get()), kPage / 8},
                                 their_rank(), at);
          }
        }));
      for (std::thread& thread : threads) thread.join();
    });
    row.value = row.p10 = row.p90 = double(total(reads)) / seconds;
    row.num_wrong = total(wrong);
    return row;
  }

 private:
  std::span<std::byte> block() { return {block_.get(), size_t(kBlock)}; }
  std::span<uint64_t> words() {
    return {reinterpret_cast<uint64_t*>(block_.get()), size_t(kBlock / 8)};
  }
  int their_rank() const { return (rig_.ranks.rank() + 1) % rig_.ranks.size(); }
  const std::string& theirs() const { return paths_[size_t(their_rank())]; }
  int64_t total(int64_t mine) {
    comm::add_up(rig_.ranks, {&mine, 1}, "storage");
    return mine;
  }
  // Seconds from when all ranks begin to when the last has ended.
  double together(function_ref<void()> body) {
    rig_.ranks.barrier("storage").wait();
    const auto start = Clock::now();
    body();
    return slowest_of_ranks(rig_.ranks, {seconds_since(start)})[0];
  }
  // Drops the file from the cache; the largest share that is still in it on any rank.
  double make_cold() {
    files_.drop_cached_pages(theirs());
    return slowest_of_ranks(rig_.ranks, {cached_share(files_, theirs())})[0];
  }

  const Rig& rig_;
  FileSystem& files_;
  AlignedMemory block_;
  int64_t bytes_;
  std::vector<std::string> paths_;
  std::optional<DiskFile> mine_;
};

// The demands of a run on such a disk (arXiv 2511.17127, its appendix on storage).
std::string reading_text(double iops) {
  machine::Reading reading{4096, 4096, 4, 4096, 1};
  std::string text =
      "a global batch of 4096 x 4096 tokens of 4 bytes: reads wait in steps shorter than";
  for (const double sigma : {1.0, 2.0, 8.0}) {
    reading.sigma = sigma;
    text += fmt::format("{} {:.3g} s (scatter {:.0f})", sigma == 1 ? "" : ",",
                        reading.shortest_step_s(iops), sigma);
  }
  return text + "\n";
}

void add_row(const Rig& rig, const DiskRow& row, machine::Mount& mount, Findings& findings) {
  const bool cold = row.cached <= kMostCached;
  findings.text += fmt::format("{:<28} {:>12.4g} {:<5}{}\n", row.name, row.value, row.unit,
                               cold ? ""
                                    : fmt::format(" {:.0f} % of the file stays in the cache: says "
                                                  "nothing about the disk",
                                                  100 * row.cached));
  findings.rows.push_back(one_line(Ordered{{"experiment_name", row.name},
                                           {"value", row.value},
                                           {"p10", row.p10},
                                           {"p90", row.p90},
                                           {"unit", row.unit},
                                           {"cached_share", row.cached},
                                           {"path", mount.path},
                                           {"filesystem", mount.filesystem},
                                           {"wrong", row.num_wrong}}));
  if (cold)
    mount.quantities[row.key] =
        rig.quantity(row.value, row.unit, row.value > 0 ? (row.p90 - row.p10) / row.value : 0);
  if (row.num_wrong == 0) return;
  machine::Measured& wrong = findings.faults.emplace_back();
  wrong.name = fmt::format("{} in {}", row.name, mount.path);
  wrong.subject = machine::Subject::kStorage;
  wrong.num_wrong = row.num_wrong;
}

}  // namespace

Findings measure_storage(const Rig& rig) {
  const auto files = posix_files();
  const auto [point, type] = mount_of(std::filesystem::absolute(rig.directory).string());
  Findings findings;
  machine::Mount mount{point, type, {}};
  findings.text = fmt::format("{} ({}), {} rank{}\n", rig.directory, type, rig.ranks.size(),
                              rig.ranks.size() == 1 ? "" : "s");
  Disk disk(rig, *files);
  for (const auto measure : {&Disk::write, &Disk::fsync, &Disk::read, &Disk::random}) {
    if (findings.num_left_out > 0 || !rig.goes_on()) {
      ++findings.num_left_out;
      continue;
    }
    add_row(rig, (disk.*measure)(), mount, findings);
  }
  rig.ranks.barrier("storage").wait();  // no rank removes a file that another reads
  if (const auto iops = mount.quantities.find("storage.iops"); iops != mount.quantities.end())
    findings.text += reading_text(iops->second.value);
  if (!mount.quantities.empty()) findings.profile.mounts.push_back(std::move(mount));
  return findings;
}

}  // namespace ashlar::bench
