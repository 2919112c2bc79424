// Reads and writes of a disk by several ranks at once.  Every rank has a file of its own and reads
// the next rank's, so that no rank reads what it wrote.
//
// Cold     a read counts only if the page cache does not hold the file: the cache is dropped, and
//          mincore says how much it still holds.  Calls go past the cache where the file system
//          can (core/files.h).
// Checked  every word that is read is compared with what was written.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/bench/machine/part.h"
#include "ashlar/core/files.h"
#include "ashlar/core/function_ref.h"

namespace ashlar::bench {

inline constexpr int64_t kDiskPage = 4096;

// Point and type of the file system of a path: the longest mount point of /proc/self/mounts that
// begins it.
std::pair<std::string, std::string> mount_of(const std::string& path);
// The share of a file that the page cache holds, by mincore.
double cached_share(FileSystem& files, const std::string& path);
// Whether the file system of this file lets calls go past the page cache (O_DIRECT).
bool has_direct_access(const std::string& path);

enum class DiskAccess { kSequential, kRandom };
enum class DiskCall { kRead, kWrite };

struct DiskTraffic {
  DiskCall call = DiskCall::kRead;
  DiskAccess access = DiskAccess::kSequential;
  int64_t block = kDiskPage;  // bytes of a call
  int ranks = 1;              // that call; the others wait
  int queue = 1;              // calls of a rank in flight
  double limit_s = 0;         // 0: the whole file once
};

struct DiskResult {
  int64_t bytes = 0, calls = 0;  // of all ranks
  double seconds = 0;            // until the last rank has ended, with fsync after writes
  std::vector<double> call_us;   // of this rank
  double cached = 0;             // largest share of a file that was cached before it was read
  int64_t num_wrong = 0;
};

// The files of all ranks, removed at the end.  All ranks call every function together.
class Disk {
 public:
  // bytes: of a rank's file, a multiple of the largest block.
  Disk(const Rig& rig, FileSystem& files, int64_t bytes);
  ~Disk();
  DiskResult run(const DiskTraffic& traffic);
  // Microseconds of fsync after writes of one page, at most so many and for so long.
  std::vector<double> fsync_us(int64_t most, double limit_s);
  const std::string& own_path() const { return paths_[size_t(rig_.ranks.rank())]; }

 private:
  int their_rank() const { return (rig_.ranks.rank() + 1) % rig_.ranks.size(); }
  const std::string& theirs() const { return paths_[size_t(their_rank())]; }
  void work(const DiskTraffic& traffic, const File& from, int worker, DiskResult& result);

  const Rig& rig_;
  FileSystem& files_;
  const int64_t bytes_;
  std::vector<std::string> paths_;
  std::unique_ptr<File> mine_;
};

}  // namespace ashlar::bench
