// How it works.  A plan takes two dry runs of a rank.  The first has a workspace that only counts,
// and so finds how large it must be and where it is fullest, and likewise the memory of deferred
// products; the second is given memory of these sizes and does nothing, since all memory is taken
// by the constructor: its count is the plan.
// A step with many micro-batches is not run whole: a short one and another, a little longer, show
// how costs grow, so that a step of a hundred thousand micro-batches is planned in a moment.
#include "ashlar/train/plan.h"

#include "ashlar/parallel/muon_holdings.h"

namespace ashlar::train {
namespace {

// The same recipe with `micro_batches` micro-batches of each data rank in a step.
Recipe with_micro_batches(Recipe recipe, int64_t dp, int64_t micro_batches) {
  recipe.train.global_batch = micro_batches * recipe.train.micro_batch * dp;
  recipe.data.num_streams = recipe.train.global_batch;
  return recipe;
}

// Once a pipeline is full, the cost, traffic and events of a step are linear in its micro-batches:
// they grow equally with every `period` of them.
struct Growth {
  int64_t micro_batches, period;  // of the shorter of two measured steps; the other has one more
  int64_t times;                  // periods between the shorter step and the whole one
};

// nullopt: the step is short enough to be run whole.
std::optional<Growth> growth_of(const Recipe& recipe, const ParallelSpec& parallel) {
  const int64_t all = recipe.train.global_batch / recipe.train.micro_batch / parallel.dp;
  const int64_t period = parallel.pp, full = 4 * parallel.pp * parallel.virtual_stages + 4;
  if (all < full + 4 * period) return std::nullopt;
  const int64_t first = full + (all - full) % period;
  return Growth{first, period, (all - first) / period};
}

int64_t grown(int64_t shorter, int64_t longer, const Growth& growth) {
  return shorter + growth.times * (longer - shorter);
}

// Runs one step of a dry run and keeps its numbers.
void take_step(DryRank& dry, std::span<const int> kind, KindPlan& kind_plan) {
  RunPlan& plan = kind_plan.first;
  dry.step();
  plan.costs = dry.costs();
  for (const int rank : kind) add(kind_plan.costs, dry.costs_of(rank));
  plan.traffic = dry.traffic();
  plan.trace = dry.num_events();
}

KernelCosts grown(const KernelCosts& shorter, const KernelCosts& longer, const Growth& growth) {
  KernelCosts costs;
  add(costs, longer, growth.times);
  add(costs, shorter, 1 - growth.times);
  return costs;
}

// Extrapolates from a short step to the whole one.  `longer`: the step that has one period more.
void grow(RunPlan& plan, const RunPlan& longer, const Growth& growth) {
  plan.costs = grown(plan.costs, longer.costs, growth);
  ASHLAR_ASSERT(plan.traffic.size() == longer.traffic.size());
  for (size_t i = 0; i < plan.traffic.size(); ++i) {
    comm::TrafficRow& row = plan.traffic[i].row;
    const comm::TrafficRow& next = longer.traffic[i].row;
    ASHLAR_ASSERT(row.op == next.op && row.label == next.label);
    row.launches = grown(row.launches, next.launches, growth);
    row.sent_bytes = grown(row.sent_bytes, next.sent_bytes, growth);
    row.received_bytes = grown(row.received_bytes, next.received_bytes, growth);
  }
  plan.trace.events = grown(plan.trace.events, longer.trace.events, growth);
  plan.trace.lane_events = grown(plan.trace.lane_events, longer.trace.lane_events, growth);
  plan.trace.messages = grown(plan.trace.messages, longer.trace.messages, growth);
  plan.trace.dims = grown(plan.trace.dims, longer.trace.dims, growth);
}

}  // namespace

KindPlan plan_kind(const Recipe& recipe, DType compute, int num_ranks, std::span<const int> kind,
                   Threads& threads, parallel::SharedMuonPlans* muon_plans) {
  parallel::SharedMuonPlans own_plans;
  if (!muon_plans) muon_plans = &own_plans;
  const int rank = kind[0];
  const ParallelSpec parallel = resolve_parallel(recipe, num_ranks);
  const std::optional<Growth> growth = growth_of(recipe, parallel);
  const auto of_length = [&](int64_t periods) {
    return growth ? with_micro_batches(recipe, parallel.dp,
                                       growth->micro_batches + periods * growth->period)
                  : recipe;
  };
  KindPlan kind_plan;
  RunPlan& plan = kind_plan.first;
  {
    DryRank dry(of_length(0), compute, num_ranks, rank, threads, {}, muon_plans);
    const int64_t allocations = dry.memory().num_allocations;
    take_step(dry, kind, kind_plan);
    dry.evaluate();
    ASHLAR_ASSERT(dry.memory().num_allocations == allocations);  // the constructor takes all memory
    plan.num_parameters = dry.trainer().num_parameters();
    plan.step_memory = dry.step_memory();
    plan.workspace_peak = dry.workspace_peak();
  }
  if (growth) {
    KindPlan longer;
    DryRank dry(of_length(1), compute, num_ranks, rank, threads, {}, muon_plans);
    take_step(dry, kind, longer);
    grow(plan, longer.first, *growth);
    kind_plan.costs = grown(kind_plan.costs, longer.costs, *growth);
  }
  plan.memory =
      DryRank(recipe, compute, num_ranks, rank, threads, plan.step_memory, muon_plans).memory();
  return kind_plan;
}

int planned_threads(const Recipe& recipe, int num_threads) {
  return num_threads > 0 ? num_threads : int(recipe.train.threads);
}

RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks, int num_threads, int rank) {
  Threads threads(planned_threads(recipe, num_threads));
  return plan_kind(recipe, compute, num_ranks, std::span(&rank, 1), threads).first;
}

}  // namespace ashlar::train
