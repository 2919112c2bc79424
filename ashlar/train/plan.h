// The dry run: one step of the real trainer on the meta device.  Its memory is the allocator's own
// count and its work the kernels' own record.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct RunPlan {
  MemoryCounts memory;          // peaks by tag over an evaluation and a whole step
  int64_t workspace_bytes = 0;  // what a real Trainer is to be given
  int64_t num_parameters = 0;
  kernels::Cost step_cost;  // one optimizer step, all micro-batches
  std::vector<std::pair<std::string, kernels::Cost>> cost_by_op;  // largest flop first
};

// Of one of num_ranks ranks.  num_threads: of its kernels; 0: train.threads.
RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks = 1, int num_threads = 0,
                 int rank = 0);
// The table that --dry-run prints: model, memory by tag, flop of a step.
std::string describe(const RunPlan& plan, const Recipe& recipe, DType compute);

// The compute type that `precision` means on this machine; auto: nn::auto_compute.
DType resolve_precision(Precision precision);

}  // namespace ashlar::train
