// Who trains into a checkpoint root: one process at a time.
//
// .lease/trainer.json names the process (boot, pid namespace, pid, start time) and its host.  A
// holder that is dead, or whose machine has restarted, is taken over at once; one on another host
// after kLeaseExpiry_s without a refresh.  Of any number of processes that start at once exactly
// one gets it, on any file system whose rename is atomic.
//
// Errors   kConfig if another process holds the root, or is about to: names it, says what to do.
#pragma once

#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

inline constexpr int64_t kLeaseRefresh_s = 60, kLeaseExpiry_s = 600;

class Lease {
 public:
  Lease(FileSystem& files, const std::string& root, Log& log);
  ~Lease();  // gives the root back; failures are logged
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // The previous holder ended without giving the root back: it was killed.
  bool taken_over() const { return taken_over_; }
  // kConfig if another process has taken the root over, because this one was silent too long.
  void check();
  void refresh();  // at least every kLeaseRefresh_s; checks first

 private:
  bool claim(const std::string& path);
  bool give_name(const std::string& aside, const std::string& path);
  void take(const std::string& path);
  void collect();
  FileSystem& files_;
  std::string root_, path_, text_;
  Log& log_;
  bool taken_over_ = false;
};

}  // namespace ashlar::checkpoint
