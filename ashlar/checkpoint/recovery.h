// Which step a run continues from, and the state of everything else in a checkpoint root.
//
// Newest first: COMMIT, manifest, index, file sizes (or a deeper check); a step that fails is
// skipped with its reason, and the next older one is tried.  Steps without a survivor are
// kCorrupt, never a silent start from step 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/verify.h"
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

// `level` applies to the newest step that is not yet verified; older ones are then checked
// likewise. With record_verdicts a failure is written to .bad/ (so that the next start need not
// repeat it). Reads only otherwise.  Errors: kCorrupt "ROOT holds N steps but none is good: ...";
// kStorage.
Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level,
                     bool record_verdicts, Log& log);

// `path` is a step directory or a root (then its newest good step).  kCorrupt if it is neither.
StepReader open_checkpoint(FileSystem& files, const std::string& path, Log& log);
bool is_checkpoint(FileSystem& files, const std::string& path);  // a step, or a root holding steps

enum class StepState : uint8_t { kCommitted, kTmp, kBad, kTrash };
struct StepInfo {
  StepState state = StepState::kCommitted;
  int64_t step = -1;      // -1: unknown (trash)
  std::string directory;  // full path
  std::string verdict;    // "candidate", "verified", "bad"; "" if not committed
  std::string created;    // from the manifest
  std::string problem;    // why it cannot be used; "" otherwise
  int64_t bytes = 0, files = 0;
  bool recovery_choice = false;  // what a run would continue from
};
// Everything in the root, oldest step first.  Quick checks only; writes nothing.
std::vector<StepInfo> list_steps(FileSystem& files, const std::string& root);

// Step directories under the root, oldest first.
std::vector<StepRef> committed_steps(FileSystem& files, const std::string& root);

void record_bad(FileSystem& files, const std::string& root, const StepRef& ref,
                const std::string& reason);
void record_verified(FileSystem& files, const std::string& root, const StepRef& ref);
bool is_bad(FileSystem& files, const std::string& root, const StepRef& ref);
bool is_verified(FileSystem& files, const std::string& root, const StepRef& ref);

// Moves a rejected step to .bad/step-S-ATTEMPT/, so that training can reach the step again.
void quarantine(FileSystem& files, const std::string& root, const StepRef& ref);

// Renames to .trash-UUID, then removes, COMMIT first.
void remove_step(FileSystem& files, const std::string& root, const std::string& directory);
// Removes what crashes left: .tmp-step-* and .trash-*.  Only for the holder of the lease.
void collect_stale(FileSystem& files, const std::string& root, Log& log);

}  // namespace ashlar::checkpoint
