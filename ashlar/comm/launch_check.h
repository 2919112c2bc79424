// Refuses a program that a launcher started many times while each copy believes that it is alone:
// the copies would do the same work and write the same files.
#pragma once

#include "ashlar/core/function_ref.h"

namespace ashlar::comm {

// environment(name) returns what getenv does.
// Errors  kLaunch if OMPI_COMM_WORLD_SIZE, PMI_SIZE, MPI_LOCALNRANKS, SLURM_NTASKS or PMIX_RANK
//         announce more ranks than the world has.
void check_launch(int world_size, function_ref<const char*(const char* name)> environment);

}  // namespace ashlar::comm
