// Ranks that are processes, started by mpirun, srun or any launcher that Open MPI knows.
#pragma once

#include <string_view>

#include "ashlar/comm/world.h"

namespace ashlar::comm {

// Starts MPI, runs body(group of all ranks) and ends MPI; once in a process.
//
// Errors  if body throws or an operation fails on any rank, report(message, exit_code) is called on
//         one rank of the world, with a message that ends in " [rank 2 of 4, host n07]", and
//         MPI_Abort ends all ranks with that code; this function then does not return.  The first
//         reason wins; of two at the same time, one that is not kComm, then that of the lower rank.
//         A body that has to wait for something before it leaves calls Group::fail first, which
//         reports at once.
// Threads  MPI_THREAD_SERIALIZED: while body runs, communication threads and threads that wait for
//          an operation or make a group call MPI, one at a time.  While they wait for ranks to
//          arrive they poll every 50 us to 1 ms, less often the longer they wait; while data moves
//          they only yield.
void run_mpi(const Options& options, Allocator& allocator, function_ref<void(Group& world)> body,
             function_ref<void(std::string_view message, int exit_code)> report);

}  // namespace ashlar::comm
