// Retention: the rule that says which steps stay, and the removal of the others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/root/fence.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

// The steps to remove: all but the newest `keep`, multiples of keep_every (0: none), pinned ones,
// and the newest verified one.  A pure function.  keep >= 1.
struct RetentionStep {
  int64_t step;
  bool verified;
  bool pinned = false;
};
std::vector<int64_t> steps_to_remove(std::vector<RetentionStep> steps, int64_t keep,
                                     int64_t keep_every);

// Reads a whole step back and returns what is wrong with it; nullopt: nothing.  Throws kStorage if
// the step could not be read.
using ReadBack = std::function<std::optional<std::string>(const StepRef& step)>;

// Applies the rule to a root, but only after the newest step was read back whole and recorded as
// verified, so that no good step is removed while the newest one cannot be loaded.  Nothing is read
// if there is nothing to remove.  A step that is being read stays until a later call.  Returns the
// steps that were removed.  Errors of reading and removing are only logged.  Only for the holder of
// the lease.
// Errors  kCorrupt if the newest step does not read back; it is recorded as bad and set aside.
std::vector<StepRef> retire_old_steps(Fence& fence, StepGuards& guards, int64_t keep,
                                      int64_t keep_every, const ReadBack& read_back, Log& log);

// The same by hand, for a root that no run trains into: takes the lease (kConfig if a run has it).
std::vector<StepRef> prune(FileSystem& files, const std::string& root, int64_t keep,
                           int64_t keep_every, Log& log);
// The steps that prune would remove if none of them is being read.
std::vector<StepRef> steps_to_prune(FileSystem& files, const std::string& root, int64_t keep,
                                    int64_t keep_every);

}  // namespace ashlar::checkpoint
