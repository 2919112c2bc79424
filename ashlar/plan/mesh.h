// The dry run of a whole mesh: what every rank takes, moves and computes in a step, by class of
// ranks.  docs/plan.md explains it.
#pragma once

#include <optional>

#include "ashlar/core/log.h"
#include "ashlar/plan/checkpoint.h"
#include "ashlar/train/plan.h"

namespace ashlar::plan {

// Ranks that need the same memory, in every tag, and are fullest at the same place.
struct RankClass {
  std::vector<int> ranks;  // ascending
  train::RunPlan plan;     // of the first
};

struct MeshPlan {
  ParallelSpec parallel;                           // resolved
  std::vector<RankClass> classes;                  // by first rank
  std::optional<train::KernelCosts> costs;         // of all ranks
  std::optional<checkpoint::StepSize> checkpoint;  // of the first step that is saved
  std::optional<DeviceSpec> device;                // absent: CPUs
};

// The plan of every rank; `rank`: of this one alone, without `costs` and `checkpoint`.
//
// The state that each rank keeps, and the work of its optimizer, are counted (rank_counts.h).  The
// rest of a step depends on the rank's coordinates along pp, cp, tsp and tp and on how much it
// keeps: it runs once for all ranks that agree in these, in memory, and in what their optimizers
// need.
// log: shows how far it is, where that takes long.  on: what ranks compute on; a GPU serves one
// rank so far, which is planned as with `rank`.
// Errors   as plan_run; kConfig where there is no such rank.
MeshPlan plan_mesh(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank = {},
                   int num_threads = 0, int ranks_per_node = kRanksPerNode, Log* log = nullptr,
                   const train::ComputeDevice& on = {});

}  // namespace ashlar::plan
