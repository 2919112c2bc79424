// Which steps stay, and the removal of the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

// Steps that retention removes: all but the newest `keep`, multiples of keep_every (0: none), and
// the newest verified one.  A pure function.  keep >= 1.
struct RetentionStep {
  int64_t step;
  bool verified;
};
std::vector<int64_t> steps_to_remove(std::vector<RetentionStep> steps, int64_t keep,
                                     int64_t keep_every);

// Applies the rule to a root, only after the newest step was read back whole: nothing good is
// removed on the strength of a step that cannot be loaded.  That step is then recorded as verified.
// Trouble with removing is only logged.  Only for the holder of the lease.
// Errors  kCorrupt if the newest step does not read back; it is recorded as bad and set aside.
void retire_old_steps(FileSystem& files, const std::string& root, int64_t keep, int64_t keep_every,
                      Log& log);

}  // namespace ashlar::checkpoint
