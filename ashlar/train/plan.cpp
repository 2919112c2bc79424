// How it works.  A plan takes two dry runs of a rank.  The first has a workspace that only counts,
// and so finds how large it must be and where it is fullest, and likewise the memory of deferred
// products; the second is given memory of these sizes and does nothing, since all memory is taken
// by the constructor: its count is the plan.
// A step with many micro-batches is not run whole (short_steps.h).
#include "ashlar/train/plan.h"

#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/train/short_steps.h"
#include "ashlar/train/start_checks.h"

namespace ashlar::train {
namespace {

// Runs one step of a dry run and keeps its numbers.
void take_step(DryRank& dry, std::span<const int> kind, KindPlan& kind_plan) {
  RunPlan& plan = kind_plan.first;
  dry.step();
  plan.costs = dry.costs();
  for (const int rank : kind) add(kind_plan.costs, dry.costs_of(rank));
  plan.traffic = dry.traffic();
  plan.trace = dry.num_events();
}

KernelCosts grown(const KernelCosts& shorter, const KernelCosts& longer, const ShortSteps& steps) {
  KernelCosts costs;
  add(costs, longer, steps.times);
  add(costs, shorter, 1 - steps.times);
  return costs;
}

// Extrapolates from a short step to the whole one.  `longer`: the step that has one period more.
void grow(RunPlan& plan, const RunPlan& longer, const ShortSteps& steps) {
  plan.costs = grown(plan.costs, longer.costs, steps);
  ASHLAR_ASSERT(plan.traffic.size() == longer.traffic.size());
  for (size_t i = 0; i < plan.traffic.size(); ++i) {
    comm::TrafficRow& row = plan.traffic[i].row;
    const comm::TrafficRow& next = longer.traffic[i].row;
    ASHLAR_ASSERT(row.op == next.op && row.label == next.label);
    row.launches = steps.grown(row.launches, next.launches);
    row.sent_bytes = steps.grown(row.sent_bytes, next.sent_bytes);
    row.received_bytes = steps.grown(row.received_bytes, next.received_bytes);
  }
  plan.trace.events = steps.grown(plan.trace.events, longer.trace.events);
  plan.trace.lane_events = steps.grown(plan.trace.lane_events, longer.trace.lane_events);
  plan.trace.messages = steps.grown(plan.trace.messages, longer.trace.messages);
  plan.trace.dims = steps.grown(plan.trace.dims, longer.trace.dims);
}

// A run that saves nothing copies nothing for saves.
void plan_pinned(const Trainer& trainer, RunPlan& plan) {
  plan.pinned_bytes = kernels::gpu::Stream::kRoomBytes;
  if (trainer.recipe().checkpoint.every < 0) return;
  plan.save_slots = kernels::gpu::SideCopies::num_slots_for(saved_bytes(trainer));
}

}  // namespace

KindPlan plan_kind(const Recipe& recipe, DType compute, int num_ranks, std::span<const int> kind,
                   Threads& threads, parallel::SharedMuonPlans* muon_plans,
                   const ComputeDevice& on) {
  parallel::SharedMuonPlans own_plans;
  if (!muon_plans) muon_plans = &own_plans;
  const int rank = kind[0];
  const ParallelSpec parallel = resolve_parallel(recipe, num_ranks);
  const std::optional<ShortSteps> steps = short_steps(recipe, parallel);
  KindPlan kind_plan;
  RunPlan& plan = kind_plan.first;
  {
    DryRank dry(steps ? steps->shorter : recipe, compute, num_ranks, rank, threads, {}, muon_plans,
                on);
    const int64_t allocations = dry.memory().num_allocations;
    take_step(dry, kind, kind_plan);
    dry.evaluate();
    ASHLAR_ASSERT(dry.memory().num_allocations == allocations);  // the constructor takes all memory
    plan.num_parameters = dry.trainer().num_parameters();
    plan.step_memory = dry.step_memory();
    plan.workspace_peak = dry.workspace_peak();
    if (on.spec) plan_pinned(dry.trainer(), plan);
  }
  if (steps) {
    KindPlan longer;
    DryRank dry(steps->longer, compute, num_ranks, rank, threads, {}, muon_plans, on);
    take_step(dry, kind, longer);
    grow(plan, longer.first, *steps);
    kind_plan.costs = grown(kind_plan.costs, longer.costs, *steps);
  }
  plan.memory =
      DryRank(recipe, compute, num_ranks, rank, threads, plan.step_memory, muon_plans, on).memory();
  return kind_plan;
}

int planned_threads(const Recipe& recipe, int num_threads) {
  return num_threads > 0 ? num_threads : int(recipe.train.threads);
}

RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks, int num_threads, int rank,
                 const ComputeDevice& on) {
  Threads threads(planned_threads(recipe, num_threads));
  return plan_kind(recipe, compute, num_ranks, std::span(&rank, 1), threads, nullptr, on).first;
}

}  // namespace ashlar::train
