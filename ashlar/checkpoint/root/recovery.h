// The step that a run continues from, and the state of everything else in a checkpoint root.
//
// Complete   a step whose COMMIT, manifest and index agree with each other and with the sizes of
//            all files: the cheap check (VerifyLevel::kQuick).  Its bytes may still be damaged.
// Good       a step whose bytes were all read and are as they were committed (VerifyLevel::kDeep).
// A run continues from the newest good step, and a root given to a reader stands for the same step.
// Steps are tried from the newest on: one that fails is skipped, with its reason.  If there are
// steps and none is good, that is kCorrupt, never a silent start from step 0.  An entry that is
// named like a step but is no directory is reported and skipped.
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

// The newest step that passes `level`.  The first form, for readers, writes nothing.  The second is
// for the holder of the lease: failures are written to .bad/, so that the next start need not
// repeat the check, and a step that was verified once is not read whole again, since the holder
// loads it next and reads all of it then.
// Errors: kCorrupt "ROOT holds N steps but none is good: ..."; kStorage.
Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level, Log& log);
Recovery find_newest(Fence& fence, VerifyLevel level, Log& log);

// Opens a step directory, or a root's newest good step, all of which is read to prove that it is
// good.  kCorrupt if `path` is neither; kConfig if it is named like a step and gone.  No run
// removes the step while the reader lives, even if it has become an old one (reader_lease.h).  A
// step is read kDirectIfWhole; a root's step is in the system's memory, since it was read for the
// check.
StepReader open_checkpoint(FileSystem& files, const std::string& path, Log& log);
// Whether `path` is a step or a root of steps, or is named like a step that is gone, which is an
// error to report as such.
bool is_checkpoint(FileSystem& files, const std::string& path);

// verify_step on a directory that a user named; no run removes it meanwhile.  kConfig if there is
// no such directory, if it is a root of steps, or if a run removed it a moment ago.
VerifyReport verify_named(FileSystem& files, const std::string& directory, VerifyLevel level,
                          Log& log);
// Throws kConfig: a step that a user named is gone.
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

// A step with its attempt and run, as far as COMMIT can be read.
StepRef refer(FileSystem& files, const std::string& root, int64_t step);
// Step directories under the root, oldest first.
std::vector<StepRef> committed_steps(FileSystem& files, const std::string& root);

// The functions with a Fence are only for the holder of the lease.
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
