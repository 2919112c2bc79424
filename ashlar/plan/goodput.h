// The cost of failing nodes to a run: `ashlar plan goodput` (sizing/goodput.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/plan/simulate.h"
#include "ashlar/sizing/goodput.h"

namespace ashlar::plan {

struct GoodputOptions {
  std::vector<std::string> overrides;  // of the recipe
  double node_mtbf_h = 0;              // hours of one node between its failures
  int64_t num_ranks = 0;
  int ranks_per_node = 0;          // 0: as estimates take it
  std::optional<double> step_s;    // absent: estimated for the machine
  std::optional<double> commit_s;  // absent: bytes of a save over the machine's storage.write
  double save_wait_s = 0.1, restart_s = 20;
  std::optional<double> replace_h;  // absent: nothing is said of spares
};

struct GoodputPlan {
  std::string recipe;
  int64_t num_ranks = 0, num_nodes = 0, every = 0;
  double node_mtbf_h = 0, step_s = 0, replace_h = 0;
  sizing::FailingRun run;  // of the recipe's interval
  sizing::GoodputShares own, best;
  int64_t best_every = 0;
  // With replace_h: a run that waits for each failed node, and spares that make this rare.
  std::optional<sizing::GoodputShares> waiting;
  int64_t spares = 0;
  std::vector<std::string> assumed;
};

inline constexpr double kSpareShare = 0.999;  // of the time, no failed node is missed

// machine: nullptr if step_s and commit_s are there.
// Errors   kConfig: a number that is neither given nor in the profile; a recipe that saves at the
//          end alone; as estimate().
GoodputPlan plan_goodput(FileSystem& files, const std::string& recipe, const MachineFile* machine,
                         const GoodputOptions& options);

std::string describe(const GoodputPlan& plan);
std::string to_json(const GoodputPlan& plan);

}  // namespace ashlar::plan
