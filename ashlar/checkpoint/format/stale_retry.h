// Files that COMMIT, manifest or index name, opened as they were committed.
//
// A look at a file system over a network may be stale: a name is missing, a size is that of an
// earlier moment, for up to FileSystem::visibility_s.  So what is missing or has another size is
// looked at again until that time is over, and is damage only then.  What can be known at once, a
// link or a directory in place of a file, is said at once.
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
// What stat says, once there is something.
std::optional<FileInfo> stat_with_retry(FileSystem& files, const std::string& path,
                                        StaleRetry& retry);
// Whether a file that was open went away or ends too early: to be opened and read again.
bool is_stale(const Error& error);

}  // namespace ashlar::checkpoint
