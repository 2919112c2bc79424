// Why a call in a root failed: the holder may have lost the root.
#pragma once

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/core/error.h"

namespace ashlar::checkpoint {

// The error of a save, or, where it is kStorage and the root was taken over, removed or moved, that
// one (Lease::check): kConfig "step S is not saved: ...".
Error cause_of(const Error& error, Lease& lease, int64_t step);

}  // namespace ashlar::checkpoint
