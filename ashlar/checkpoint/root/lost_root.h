// The cause of a failed call in a root: the holder may have lost the root.
#pragma once

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/core/error.h"

namespace ashlar::checkpoint {

// Returns the error of a save; but if it is kStorage, and the root was taken over, removed or
// moved, the error that says so (Lease::check): kConfig "step S is not saved: ...".
Error cause_of(const Error& error, Lease& lease, int64_t step);

}  // namespace ashlar::checkpoint
