// Going back to an older good step on purpose.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

// Makes `step` the newest of the root, so that a run continues from it.  supersede: newer steps are
// moved to .superseded/, where they stay until the run has come as far again.
// Errors  kConfig if there is no such step; if another process trains into the root; if there are
//         newer steps without `supersede`, or one of them is pinned or being read: they are named.
//         kCorrupt if the step is damaged.  After an error nothing was moved.
void rewind(FileSystem& files, const std::string& root, int64_t step, bool supersede, Log& log);

}  // namespace ashlar::checkpoint
