// Files that COMMIT, manifest or index name, opened as they were committed.
//
// A file system over a network may report stale facts for up to FileSystem::visibility_s: a name
// is missing, or a size is that of an earlier moment.  So a file that is missing or has another
// size is looked at again until that time is over, and counts as damaged only then.  A link or a
// directory in place of a file is an error at once.
//
// Errors   kCorrupt: PATH and what is wrong; kStorage if the machine cannot read.
// Threads  any.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ashlar/core/files.h"

namespace ashlar::checkpoint {

// Says whether a look may be stale and is to be repeated.  The time that one reader of a directory
// has waited counts for all of its files: it waits no longer for many missing files than for one.
class StaleRetry {
 public:
  StaleRetry(FileSystem& files, const std::string& directory);
  // Waits a little, and longer every time; false, at once, when the time is over.
  bool wait();

 private:
  FileSystem& files_;
  const double limit_s_;
  std::mutex mutex_;
  double waited_s_ = 0;
};

// A plain file of the size that was committed.
void check_file(FileSystem& files, const std::string& path, int64_t size_bytes, StaleRetry& retry);
std::unique_ptr<File> open_committed(FileSystem& files, const std::string& path, int64_t size_bytes,
                                     StaleRetry& retry);
// The result of stat once the file is there; nullopt if it still is not when the time is over.
std::optional<FileInfo> stat_with_retry(FileSystem& files, const std::string& path,
                                        StaleRetry& retry);
// Whether an open file went away or ended too early, so that it is to be opened and read again.
bool is_stale(const Error& error);

}  // namespace ashlar::checkpoint
