// The flags of commands that run a model: what computes, and in which type.
#pragma once

#include "ashlar/cli/command.h"
#include "ashlar/eval/load.h"

namespace ashlar::cli {

void add_compute_flags(CLI::App& app, eval::ComputeFlags& flags);

}  // namespace ashlar::cli
