// Reading a committed step back, to prove that the disk has what was written.  If there are several
// ranks, each reads files that another wrote, and past the copy in the machine's memory.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/writers/save_tree.h"
#include "ashlar/control/tree.h"
#include "ashlar/core/files.h"

namespace ashlar::checkpoint {

// For each reader, the rank whose files it reads.  The files of each rank are read by the rank that
// is half of all ranks further in the order of nodes: on another node than the one that wrote them,
// unless one node has more than half of all ranks.
std::vector<int> read_back_partners(const control::Tree& tree);

// Limits reading to so many bytes a second; 0: no limit.
class RateLimit {
 public:
  explicit RateLimit(int64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  void spend(int64_t bytes);  // sleeps until they are due

 private:
  int64_t bytes_per_s_;
  double bytes_ = 0;
  Clock::time_point start_ = Clock::now();
};

// Reads every byte of files of a step, with the cache dropped, and compares sizes and checksums.  A
// file that differs is read once more before it counts as damaged.  progress receives the bytes so
// far; if it returns false, reading ends, as if a file could not be read.
// The result's bad_rank is `rank` if a file is damaged or could not be read; it has the times of
// `rank`.  Throws nothing.
ReadBackResult read_back_files(FileSystem& files, const std::string& directory,
                               std::span<const IndexFile> what, int rank, RateLimit& limit,
                               const std::function<bool(int64_t bytes)>& progress);

// Reads all of a step on one rank.
ReadBackResult read_back_alone(
    FileSystem& files, const StepRef& step, int64_t bytes_per_s, Log& log,
    const std::function<bool(int64_t bytes)>& progress = [](int64_t) { return true; });
// The damage that was found; nullopt: none.  Throws kStorage if a rank could not read the step.
std::optional<std::string> damage_of(const ReadBackResult& result);

// Encodes the files as a message, and decodes it.
std::vector<std::byte> encode_files(const Id& attempt, std::vector<IndexFile> files);
std::vector<IndexFile> decode_files(std::span<const std::byte> bytes);

}  // namespace ashlar::checkpoint
