// Reading a committed step back, so that what was written is known to be on the disk: by ranks that
// did not write it, where there are several, past what the machine's memory still holds of it.
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

// By reader, the rank whose files it reads: every rank's are read by one, half of the ranks further
// in the order of nodes, so that a file is read on another node than where it was written unless
// one node has more than half of all ranks.
std::vector<int> read_back_partners(const control::Tree& tree);

// Cuts reading down to so many bytes a second; 0: no limit.
class RateLimit {
 public:
  explicit RateLimit(int64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  void spend(int64_t bytes);  // sleeps until they are due

 private:
  int64_t bytes_per_s_;
  double bytes_ = 0;
  Clock::time_point start_ = Clock::now();
};

// Reads every byte of files of a step, with the cache dropped, and compares sizes and checksums.
// What differs is read once more before it counts as damage.  progress is told the bytes so far; if
// it answers no, reading ends, as if a file could not be read.
// The result's bad_rank is `rank` if a file is damaged, or could not be read, and it has the times
// of `rank`.  Throws nothing.
ReadBackResult read_back_files(FileSystem& files, const std::string& directory,
                               std::span<const IndexFile> what, int rank, RateLimit& limit,
                               const std::function<bool(int64_t bytes)>& progress);

// All of a step by one rank.
ReadBackResult read_back_alone(
    FileSystem& files, const StepRef& step, int64_t bytes_per_s, Log& log,
    const std::function<bool(int64_t bytes)>& progress = [](int64_t) { return true; });
// What is wrong with the step, nullopt: nothing.  kStorage if a rank could not read it.
std::optional<std::string> damage_of(const ReadBackResult& result);

// The files as a message, and back.
std::vector<std::byte> encode_files(const Id& attempt, std::vector<IndexFile> files);
std::vector<IndexFile> decode_files(std::span<const std::byte> bytes);

}  // namespace ashlar::checkpoint
