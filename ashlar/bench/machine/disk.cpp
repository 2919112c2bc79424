#include "ashlar/bench/machine/disk.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <sstream>
#include <thread>
#include <tuple>

#include "ashlar/comm/agree.h"
#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/rng.h"

namespace ashlar::bench {
namespace {

constexpr int64_t kWordsOfPage = kDiskPage / 8;

// Word i of a page is a hash of rank and page, plus i.
uint64_t first_word(int rank, int64_t offset) {
  return splitmix64(splitmix64(uint64_t(rank) + 1) ^ uint64_t(offset));
}
void fill_pages(std::span<uint64_t> words, int rank, int64_t offset) {
  for (int64_t page = 0; page < int64_t(words.size()); page += kWordsOfPage) {
    const uint64_t first = first_word(rank, offset + page * 8);
    for (int64_t i = 0; i < kWordsOfPage; ++i) words[size_t(page + i)] = first + uint64_t(i);
  }
}
int64_t wrong_words(std::span<const uint64_t> words, int rank, int64_t offset) {
  int64_t wrong = 0;
  for (int64_t page = 0; page < int64_t(words.size()); page += kWordsOfPage) {
    const uint64_t first = first_word(rank, offset + page * 8);
    for (int64_t i = 0; i < kWordsOfPage; ++i)
      wrong += words[size_t(page + i)] != first + uint64_t(i);
  }
  return wrong;
}

}  // namespace

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

double cached_share(FileSystem& files, const std::string& path) {
  const auto mapping = files.map(path);
  const std::span<const std::byte> bytes = mapping->bytes();
  if (bytes.empty()) return 0;
  std::vector<unsigned char> pages((bytes.size() + kDiskPage - 1) / kDiskPage);
  if (mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()) != 0) return 1;
  return double(std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; })) /
         double(pages.size());
}

bool has_direct_access(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file >= 0) ::close(file);
  return file >= 0;
}

Disk::Disk(const Rig& rig, FileSystem& files, int64_t bytes)
    : rig_(rig), files_(files), bytes_(bytes) {
  const int64_t process = comm::from_leader(rig.ranks, getpid(), "process");
  for (int rank = 0; rank < rig.ranks.size(); ++rank)
    paths_.push_back(join(rig.directory, fmt::format("ashlar-storage-{}-{}.tmp", process, rank)));
  mine_ = files_.create(own_path());
  rig.ranks.barrier("storage").wait();  // all files exist
}

Disk::~Disk() {
  try {
    mine_.reset();
    files_.remove(own_path());
  } catch (const Error&) {  // the disk has failed already, and that is reported
  }
}

// One of the workers that keep calls in flight.
void Disk::work(const DiskTraffic& traffic, const File& from, int worker, DiskResult& result) {
  const AlignedMemory memory = aligned_memory(traffic.block, "a block of a file");
  const std::span<std::byte> block(memory.get(), size_t(traffic.block));
  const std::span<uint64_t> words(reinterpret_cast<uint64_t*>(memory.get()),
                                  size_t(traffic.block / 8));
  const bool reads = traffic.call == DiskCall::kRead;
  const int64_t num_blocks = bytes_ / traffic.block;
  const Rng rng(uint64_t(worker), "storage");
  const auto start = Clock::now();
  for (int64_t i = worker;; i += traffic.queue) {
    if (traffic.limit_s > 0 ? seconds_since(start) >= traffic.limit_s : i >= num_blocks) break;
    const int64_t number = traffic.access == DiskAccess::kRandom
                               ? int64_t(rng.below(uint64_t(i), uint64_t(num_blocks)))
                               : i % num_blocks;
    const int64_t at = number * traffic.block;
    if (!reads) fill_pages(words, rig_.ranks.rank(), at);
    const auto begin = Clock::now();
    if (reads)
      from.read_direct(block, at);
    else
      mine_->write_direct(block, at);
    result.call_us.push_back(us_since(begin));
    if (reads) result.num_wrong += wrong_words(words, their_rank(), at);
    ++result.calls;
    result.bytes += traffic.block;
  }
}

DiskResult Disk::run(const DiskTraffic& traffic) {
  const bool reads = traffic.call == DiskCall::kRead;
  DiskResult result;
  if (reads) {
    files_.drop_cached_pages(theirs());
    result.cached = slowest_of_ranks(rig_.ranks, {cached_share(files_, theirs())})[0];
  }
  const auto from = files_.open(theirs());
  std::vector<DiskResult> parts(size_t(traffic.queue));
  rig_.ranks.barrier("storage").wait();
  const auto start = Clock::now();
  if (rig_.ranks.rank() < traffic.ranks) {
    std::vector<std::exception_ptr> errors(parts.size());
    const auto work_safely = [&](int worker) {
      try {
        work(traffic, *from, worker, parts[size_t(worker)]);
      } catch (...) {
        errors[size_t(worker)] = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (int worker = 1; worker < traffic.queue; ++worker)
      threads.push_back(start_thread("calls of a disk", [&, worker] { work_safely(worker); }));
    work_safely(0);
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    if (!reads) mine_->sync();
  }
  result.seconds = slowest_of_ranks(rig_.ranks, {seconds_since(start)})[0];
  for (const DiskResult& part : parts) {
    result.bytes += part.bytes;
    result.calls += part.calls;
    result.num_wrong += part.num_wrong;
    result.call_us.insert(result.call_us.end(), part.call_us.begin(), part.call_us.end());
  }
  int64_t sums[] = {result.bytes, result.calls, result.num_wrong};
  comm::add_up(rig_.ranks, sums, "storage");
  std::tie(result.bytes, result.calls, result.num_wrong) = std::tuple(sums[0], sums[1], sums[2]);
  return result;
}

std::vector<double> Disk::fsync_us(int64_t most, double limit_s) {
  const AlignedMemory memory = aligned_memory(kDiskPage, "a page of a file");
  const std::span<std::byte> page(memory.get(), size_t(kDiskPage));
  fill_pages({reinterpret_cast<uint64_t*>(memory.get()), size_t(kWordsOfPage)}, rig_.ranks.rank(),
             0);
  std::vector<double> us;
  rig_.ranks.barrier("storage").wait();
  const auto begin = Clock::now();
  while (int64_t(us.size()) < most && (us.size() < 10 || seconds_since(begin) < limit_s)) {
    mine_->write_at(page, 0);
    const auto start = Clock::now();
    mine_->sync();
    us.push_back(us_since(start));
  }
  rig_.ranks.barrier("storage").wait();
  return us;
}

}  // namespace ashlar::bench
