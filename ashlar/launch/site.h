// A launch on several machines, as the program runs it on each of them: an agent with a leader.
//
// The site is what starts processes on other machines: Slurm (slurm.h), or mpirun with what it has
// (by_hand.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/launch/launcher.h"
#include "ashlar/launch/layouts.h"
#include "ashlar/launch/leader.h"

namespace ashlar::launch {

struct FleetWorld {
  int num_nodes = 1, ranks_per_node = 1;       // of an attempt
  std::string interface_name = {};             // for links between agents; "" or "none": any
  std::string program = {};                    // that checks nodes
  std::optional<LayoutQuestion> layouts = {};  // of fewer nodes; nullopt: none are asked for
};

struct LaunchSite {
  std::string job, node;  // as AgentSpec has them; so is number
  int number = 1;
  StarterKind kind = StarterKind::kSrun;
  // The words that start so many ranks on each of these nodes, before those of the program.
  std::function<std::vector<std::string>(const std::vector<std::string>& nodes, int ranks_per_node)>
      starter = {};
  std::function<std::optional<std::vector<std::string>>()> startable = {};  // as FleetSpec has it
  std::vector<std::string> variables = {};                         // NAME=VALUE, for the starter
  std::function<void(Leader& leader, int exit_code)> at_end = {};  // of the run, by its leader
};

// Returns when the run is over, with its exit code.
int run_on_site(const LaunchPlan& plan, const FleetWorld& world, const LaunchSite& site,
                FileSystem& files, Log& log);

}  // namespace ashlar::launch
