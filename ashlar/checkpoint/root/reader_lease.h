// Keeps a step from being removed while it is read (step_guard.h).
//
// A thread of its own refreshes the lease.  If the root cannot be written, on a read-only mount, or
// has no guards, because an older program wrote it and none trains there, the step is read without
// a lease and without a message: it can be read as long as the run that writes it keeps it.
//
// Threads  one.  The file system outlives the object.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/checkpoint/root/recovery.h"

namespace ashlar::checkpoint {

class ReaderLease {
 public:
  // Null: the step is gone; look for another.
  static std::unique_ptr<ReaderLease> take(FileSystem& files, const std::string& root,
                                           const StepRef& ref, const LeaseOptions& options = {});
  // For a step directory that a user named; without a lease if it is not named like a step.
  // kConfig: it is gone (fail_removed).
  static std::unique_ptr<ReaderLease> of_step(FileSystem& files, const std::string& directory);
  ~ReaderLease();  // gives the step back
  ReaderLease(const ReaderLease&) = delete;
  ReaderLease& operator=(const ReaderLease&) = delete;

  bool held() const { return !path_.empty(); }

 private:
  ReaderLease(FileSystem& files, std::string path, LeaseHolder me);
  void refresh_loop();

  FileSystem& files_;
  std::string path_;  // "": read without a lease
  LeaseHolder me_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // under mutex_
  std::thread refresher_;
};

}  // namespace ashlar::checkpoint
