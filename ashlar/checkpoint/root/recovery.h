// Which step a run continues from, and the state of everything else in a checkpoint root.
//
// Complete   a step whose COMMIT, manifest and index agree with each other and with the sizes of
//            all files: the cheap check (VerifyLevel::kQuick).  Its bytes may be damaged all the
//            same.
// Good       a step of which every byte was read and is as it was committed (VerifyLevel::kDeep).
// A run continues from the newest good step, and a root given to a reader stands for the same one.
// Newest first: a step that fails is passed over with its reason, and the next older one is tried.
// Steps without a survivor are kCorrupt, never a silent start from step 0.  What is named like a
// step and is no directory is none: it is named and passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/load/verify.h"
#include "ashlar/checkpoint/root/fence.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

struct StepRef {
  int64_t step = 0;
  std::string directory, attempt, run_id;  // attempt "unknown" where COMMIT cannot be read
};

struct RejectedStep {
  StepRef ref;
  std::string reason;
};

struct Recovery {
  std::optional<StepRef> newest;       // nullopt: the root holds no step
  std::vector<RejectedStep> rejected;  // newer than it, newest first
};

// The newest step that passes `level`.  A reader writes nothing.  For the holder of the lease, who
// gives its fence, failures are written to .bad/ (so that the next start need not repeat the
// check), and a step that was verified once is not read whole again, since the holder loads it next
// and so reads all of it.
// Errors: kCorrupt "ROOT holds N steps but none is good: ..."; kStorage.
Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level, Log& log);
Recovery find_newest(Fence& fence, VerifyLevel level, Log& log);

// `path` is a step directory or a root: then its newest good step, all of which is read to know
// that it is.  kCorrupt if it is neither; kConfig if it is named like a step and gone.  While the
// reader lives no run removes the step, though it be an old one by then (reader_lease.h).  A step
// is read kDirectIfWhole; of a root's the system has kept what was read.
StepReader open_checkpoint(FileSystem& files, const std::string& path, Log& log);
// A step, or a root holding steps; what is named like a step and is gone is one to be named.
bool is_checkpoint(FileSystem& files, const std::string& path);

// verify_step of a directory that a user named: no run removes it meanwhile.  kConfig if there is
// no such directory, if it holds steps and is none, or if a run removed it a moment ago.
VerifyReport verify_named(FileSystem& files, const std::string& directory, VerifyLevel level,
                          Log& log);
// kConfig: a step that was named is gone.
[[noreturn]] void fail_removed(const std::string& directory);

enum class StepState : uint8_t { kCommitted, kTmp, kBad, kTrash, kForeign };
struct StepInfo {
  StepState state = StepState::kCommitted;
  int64_t step = -1;      // -1: unknown (trash)
  std::string directory;  // full path
  std::string verdict;    // "candidate", "verified", "bad"; "" if not committed
  std::string created;    // from the manifest
  std::string problem;    // why it cannot be used; "" otherwise
  int64_t bytes = 0, files = 0;
  bool pinned = false;
  int64_t readers = 0;           // leases of processes that read it, or were killed while they did
  bool recovery_choice = false;  // the newest that passed: at kDeep what a run continues from
};
// Everything in the root, oldest step first; each step checked at that level.  Writes nothing.
std::vector<StepInfo> list_steps(FileSystem& files, const std::string& root, VerifyLevel level,
                                 Log& log);

// A step with its attempt and run, as far as COMMIT tells them.
StepRef refer(FileSystem& files, const std::string& root, int64_t step);
// Step directories under the root, oldest first.
std::vector<StepRef> committed_steps(FileSystem& files, const std::string& root);

// What follows with a Fence is only for the holder of the lease.
void record_bad(Fence& fence, const StepRef& ref, const std::string& reason);
void record_verified(Fence& fence, const StepRef& ref);
bool is_bad(FileSystem& files, const std::string& root, const StepRef& ref);
bool is_verified(FileSystem& files, const std::string& root, const StepRef& ref);

// Moves a rejected step to .bad/step-S-ATTEMPT/, so that training can reach the step again.
void quarantine(Fence& fence, const StepRef& ref);

// Renames into the fence, then removes, COMMIT first.
void remove_step(Fence& fence, const std::string& directory);
// Removes what killed processes left: .tmp-step-*, .trash-*, half-written small files, and verdicts
// of steps that are gone.
void collect_stale(Fence& fence, Log& log);

}  // namespace ashlar::checkpoint
