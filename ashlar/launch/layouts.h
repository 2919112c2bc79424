// The layouts of a run on fewer nodes than its own, as the planner finds them (plan/search.h): the
// same model, batch of a step and order of data, by other degrees, micro-batches and recomputation.
//
//   legal    what the trainer accepts; where no layout of all ranks is, some ranks are left out, on
//            every node equally many
//   memory   the fullest rank, by a dry run, fits into its share of a node
//   best     the least time of a step on the machine of the profile
//
// A search takes from a second to minutes, so that a process beside the leader makes them once, and
// the leader reads launch/layouts.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/plan/search.h"

namespace ashlar::launch {

struct LaunchLayout {
  int nodes = 1, ranks_per_node = 1;   // that have ranks
  std::vector<std::string> keys = {};  // "parallel.cp=2", over those of the run
  std::string mesh = {};               // "pp 1 x dp 2 x cp 1 x tp 1"
  double step_s = 0;                   // by the plan
  int64_t rank_bytes = 0;              // of the fullest rank
  friend bool operator==(const LaunchLayout&, const LaunchLayout&) = default;
};

struct LayoutQuestion {
  Recipe recipe;
  DType compute{};
  plan::MachineFile machine;
  int nodes = 1, ranks_per_node = 1;  // of the run
  int64_t node_bytes = 0;             // of memory, where the profile does not have it

  std::string id() const;  // another one if any layout may be another
};

// The run's own layout.
LaunchLayout own_layout(const LayoutQuestion& question, Log& log);
// The best layout of the largest possible number of ranks on so many nodes, with the fewest nodes
// that can have as many.  nullopt: no layout fits.
std::optional<LaunchLayout> layout_on(const LayoutQuestion& question, int nodes, Log& log);

// The layouts that are known, of most nodes first; the first one is the run's own.
struct LaunchLayouts {
  std::string question = {};  // LayoutQuestion::id()
  std::vector<LaunchLayout> all = {};
  bool whole = false;  // the search has ended

  // The one of most nodes that as many nodes can have; nullptr: none.
  const LaunchLayout* on(int nodes) const;
};
// Empty unless the file has the answer to this question.
LaunchLayouts read_layouts(FileSystem& files, const std::string& path, const std::string& question);

// Unless the file has the whole answer already.  Writes it again after every layout that it finds:
// the run's own, one node less, half of the nodes, and then the others downwards.
void find_layouts(const LayoutQuestion& question, FileSystem& files, const std::string& path,
                  Log& log);

}  // namespace ashlar::launch
