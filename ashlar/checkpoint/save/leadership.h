// The part of a Checkpointer that only the leader has: the lease of the root, the guards of its
// steps, the newest good step, and the right to remove.
//
// Errors   the constructor: kConfig if another process trains into the root (lease.h), kCorrupt if
//          the root has steps but none is good.
// Threads  any, but for construction and destruction.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/checkpoint/save/retention.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

class Leadership {
 public:
  // Takes the lease, removes what killed processes left, and finds the newest good step.
  Leadership(FileSystem& files, const std::string& root, const LeaseOptions& options, Log& log);

  std::optional<StepRef> newest() const;
  // The newest step, if a holder that was killed left it and it was not read whole since.
  std::optional<StepRef> unchecked() const;
  void accept_newest();  // it was read whole, and is good
  // It is damaged: it is recorded as bad and set aside, and the next older good step becomes the
  // newest.  kCorrupt if there is none.
  void reject_newest(const std::string& reason);

  // A step was committed, with these files.
  void add_newest(StepRef step, std::vector<IndexFile> files);
  // The files of the newest step; empty if it is another step, or was not added here.
  std::vector<IndexFile> written_files(const StepRef& step) const;
  // Calls retire_old_steps.  It throws if the newest step did not read back.
  void retire(int64_t keep, int64_t keep_every, const ReadBack& read_back);

  // The directory of an attempt that failed while others were writing.  A slower writer may make it
  // again, so that remove_abandoned() removes it more than once.
  void add_abandoned(std::string directory);
  void remove_abandoned();

  Fence& fence() { return lease_.fence(); }
  void check() { lease_.check(); }                   // kConfig: the root is another's by now
  Error cause_of(const Error& error, int64_t step);  // lost_root.h

 private:
  void recover(VerifyLevel level);

  FileSystem& files_;
  const std::string root_;
  Log& log_;
  Lease lease_;
  StepGuards guards_;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<StepRef> newest_;
  std::vector<IndexFile> newest_files_;  // of newest_, if it was saved here
  bool unchecked_ = false;
  std::vector<std::string> abandoned_;
};

}  // namespace ashlar::checkpoint
