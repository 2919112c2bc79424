// Ranks that are threads of this process: the receiver copies straight out of the sender's memory.
#pragma once

#include "ashlar/comm/world.h"

namespace ashlar::comm {

// Runs body(group of all ranks) on num_ranks new threads, each with a communication thread for each
// of its lanes beside it, and returns when all have ended.  Rethrows the first failure, once, with
// " [rank 2 of 4]" behind its message; by then the others have ended too, with kComm where they
// were waiting.  allocator_of(rank) counts the staging memory of the rank; called on its thread.
void run_ranks(int num_ranks, const Options& options,
               function_ref<Allocator&(int rank)> allocator_of,
               function_ref<void(Group& world)> body);
// The allocator counts the staging memory of all ranks.
void run_ranks(int num_ranks, const Options& options, Allocator& allocator,
               function_ref<void(Group& world)> body);

}  // namespace ashlar::comm
