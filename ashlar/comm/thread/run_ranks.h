// Ranks that are threads of this process: a receiver copies directly from the sender's memory.
#pragma once

#include "ashlar/comm/world.h"

namespace ashlar::comm {

// Runs body(group of all ranks) on num_ranks new threads, each of which has a communication thread
// for each of its lanes, and returns when all have ended.  Rethrows the first failure once, with
// " [rank 2 of 4]" behind its message.  By then the others have ended too, with kComm if they were
// waiting.  allocator_of(rank) counts the staging memory of the rank; it is called on its thread.
void run_ranks(int num_ranks, const Options& options,
               function_ref<Allocator&(int rank)> allocator_of,
               function_ref<void(Group& world)> body);
// The allocator counts the staging memory of all ranks.
void run_ranks(int num_ranks, const Options& options, Allocator& allocator,
               function_ref<void(Group& world)> body);

}  // namespace ashlar::comm
