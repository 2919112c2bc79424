// The dry run of one rank: a step of the real trainer on the meta device.  Memory is what the
// allocator counts, work and traffic are the events of the rank's trace (tensor/trace.h).
// ashlar/plan/mesh.h makes the plan of all ranks.
//
// docs/plan.md lists what it counts and what it leaves out.
#pragma once

#include <span>

#include "ashlar/kernels/side_copies.h"
#include "ashlar/train/dry_rank.h"

namespace ashlar::train {

struct RunPlan {
  MemoryCounts memory;     // peaks by tag over an evaluation and a whole step
  StepMemory step_memory;  // for a real Trainer
  // Memory of the host that a GPU copies from and to: for lists and results, and the slots of saves
  // (kernels/side_copies.h).
  int64_t pinned_bytes = 0, save_slots = 0;
  int64_t pinned_save_bytes() const { return save_slots * kernels::gpu::SideCopies::kSlotBytes; }
  std::string workspace_peak;  // the place in a step where the workspace first is that large
  int64_t num_parameters = 0;
  KernelCosts costs;                  // of a step, all micro-batches
  std::vector<GroupTraffic> traffic;  // of the same step
  TraceRoom trace;                    // number of events of the same step
};

// The plan of one of num_ranks ranks.  num_threads: threads of its kernels; 0: train.threads.
// on: what the run computes on.
// Errors   kDevice if a GPU lacks functions that a step calls; kConfig if num_ranks ranks cannot
//          share the recipe (resolve_parallel).
RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks = 1, int num_threads = 0,
                 int rank = 0, const ComputeDevice& on = {});

// Ranks that are alike but for the places of their shards.
struct KindPlan {
  RunPlan first;      // the plan of the first
  KernelCosts costs;  // of a step of all of them, if their updates were the first one's
};
// The same on the caller's threads.  kind: at least one rank.  muon_plans: of the mesh; null: they
// are made for this kind.
KindPlan plan_kind(const Recipe& recipe, DType compute, int num_ranks, std::span<const int> kind,
                   Threads& threads, parallel::SharedMuonPlans* muon_plans = nullptr,
                   const ComputeDevice& on = {});

// The threads of a rank in a dry run, as many as in the run: Newton-Schulz takes workspace for
// each.
int planned_threads(const Recipe& recipe, int num_threads);

}  // namespace ashlar::train
