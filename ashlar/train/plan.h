// The dry run: a step of the real trainer on the meta device, of one rank or of a whole mesh.
// Memory is the allocator's own count, work and traffic are the events of the rank's trace
// (tensor/trace.h).
//
// docs/plan.md says what it counts, and what not.
#pragma once

#include <optional>

#include "ashlar/checkpoint/save/step_size.h"
#include "ashlar/core/log.h"
#include "ashlar/train/dry_rank.h"

namespace ashlar::train {

struct RunPlan {
  MemoryCounts memory;          // peaks by tag over an evaluation and a whole step
  int64_t workspace_bytes = 0;  // what a real Trainer is to be given
  std::string workspace_peak;   // where in a step so much is in use for the first time
  int64_t num_parameters = 0;
  Costs costs;                        // of a step, all micro-batches
  std::vector<GroupTraffic> traffic;  // of the same step
  TraceRoom trace;                    // of the same step: how many events it is
};

// The plan of one of num_ranks ranks.  num_threads: of its kernels; 0: train.threads.
// Errors   kConfig where so many ranks cannot share the recipe (resolve_parallel).
RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks = 1, int num_threads = 0,
                 int rank = 0);

// Ranks that need the same memory, in every tag, and are fullest at the same place.
struct RankClass {
  std::vector<int> ranks;  // ascending
  RunPlan plan;            // of the first
};

struct MeshPlan {
  ParallelSpec parallel;                           // resolved
  std::vector<RankClass> classes;                  // by first rank
  std::optional<Costs> costs;                      // of all ranks
  std::optional<checkpoint::StepSize> checkpoint;  // of the first step that is saved
};

inline constexpr int kRanksPerNode = 8;  // where nobody says how many ranks share a machine

// The plan of every rank; `rank`: of this one alone, without `costs` and `checkpoint`.
//
// Every rank's trainer is made and its optimizer run, for these depend on what the rank keeps.
// What comes before in a step depends on its coordinates along pp, cp and tp and on how much it
// keeps: it runs once for all ranks that agree in these, in memory, and in what the optimizer
// needs.
// log: shows how far it is, where that takes long.
// Errors   as plan_run; kConfig where there is no such rank.
MeshPlan plan_mesh(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank = {},
                   int num_threads = 0, int ranks_per_node = kRanksPerNode, Log* log = nullptr);

// MeshPlan::checkpoint alone, of ranks of which so many share a machine: every rank's trainer is
// made, and what it would save is planned.  A tokenizer is taken to be in the step, of at most 4
// MiB.
checkpoint::StepSize plan_checkpoint(const Recipe& recipe, DType compute, int num_ranks,
                                     int num_threads = 0, int ranks_per_node = kRanksPerNode);

}  // namespace ashlar::train
