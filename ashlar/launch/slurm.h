// A launch on the nodes of a Slurm job (scripts/slurm/launch.sbatch): every node of the job runs
// `ashlar launch --starter srun` once, which becomes its agent, and the one that leads starts each
// attempt as a step of the job on the nodes that it chooses.
//
// Errors   kLaunch outside of a Slurm job.
#pragma once

#include <string>
#include <vector>

#include "ashlar/launch/site.h"

namespace ashlar::launch {

// The words that start so many ranks on each of these nodes, before those of the program.
// Ranks share the CPUs that the job has on a node.
std::vector<std::string> srun_words(const std::string& job, const std::vector<std::string>& nodes,
                                    int ranks_per_node, int cpus_per_node);

// Returns when the run is over, with its exit code.
int run_in_slurm(const LaunchPlan& plan, const FleetWorld& world, FileSystem& files, Log& log);

}  // namespace ashlar::launch
