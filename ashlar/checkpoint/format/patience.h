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

// How long one reader of a directory has waited in all.  Time that has passed counts for all of its
// files: were many of them gone, it would wait no longer than for one.
class Patience {
 public:
  Patience(FileSystem& files, const std::string& directory);
  // Waits a little, and longer every time; false, at once, when the time is over.
  bool wait();

 private:
  FileSystem& files_;
  const double limit_s_;
  std::mutex mutex_;
  double waited_s_ = 0;
};

// A plain file of the size that was committed.
void check_file(FileSystem& files, const std::string& path, int64_t size_bytes, Patience& patience);
std::unique_ptr<File> open_committed(FileSystem& files, const std::string& path, int64_t size_bytes,
                                     Patience& patience);
// What stat says, once there is something.
std::optional<FileInfo> stat_patiently(FileSystem& files, const std::string& path,
                                       Patience& patience);
// Whether a file that was open went away or ends too early: to be opened and read again.
bool is_stale(const Error& error);

}  // namespace ashlar::checkpoint
