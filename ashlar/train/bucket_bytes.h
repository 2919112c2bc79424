// parallel.bucket_bytes = "auto" of a run, resolved by the profile that train.machine names
// (sizing/bucket_bytes.h).  Other recipes are returned as they are, and no profile is read.
#pragma once

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// Errors   kConfig: as sizing::with_bucket_bytes; kConfig, kStorage: the profile cannot be read.
Recipe with_bucket_bytes(FileSystem& files, const Recipe& recipe, int64_t num_ranks);
// The same on all ranks, of which rank 0 reads the profile: others may have other files.
Recipe with_bucket_bytes(FileSystem& files, const Recipe& recipe, comm::Group& ranks);

}  // namespace ashlar::train
