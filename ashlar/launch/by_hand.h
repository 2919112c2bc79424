// A launch on several machines without Slurm: `ashlar launch --join` is started on every node by
// hand, and the one that leads starts each attempt by mpirun, which reaches the other nodes by what
// it has (ssh as a rule).
//
// A node is called as its host.  The launchers of one start of a launch know each other by the last
// epoch that had ended before it: one that is started after an end begins a new launch.
#pragma once

#include <string>
#include <vector>

#include "ashlar/launch/site.h"

namespace ashlar::launch {

// The words that start so many ranks by mpirun on each of these nodes, or on this machine if there
// are none.
std::vector<std::string> mpirun_words(const std::vector<std::string>& nodes, int ranks_per_node);

// Returns when the run is over, with its exit code.
int run_by_hand(const LaunchPlan& plan, const FleetWorld& world, FileSystem& files, Log& log);

}  // namespace ashlar::launch
