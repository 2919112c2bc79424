// How it works.  plan_mesh does not run the step of every rank.  It counts the state that each rank
// keeps and the work of its optimizer (rank_counts.h), which show all that a step depends on
// (Signature).  Then it runs one whole step per signature.  The work of all ranks is
//
//   sum over ranks of the update + sum over kinds of (step - update) of the first rank * ranks
//
// where the copies that begin the gathers of ZeRO are each rank's own (DryRank::costs_of).
// Ranks of different kinds may still need the same memory at the same place: they become one class.
#include "ashlar/plan/mesh.h"

#include <algorithm>
#include <mutex>

#include "ashlar/plan/rank_counts.h"

namespace ashlar::plan {

namespace {

using train::KindPlan;
using train::RunPlan;

bool same_memory(const RunPlan& a, const RunPlan& b) {
  return peaks_of(a.memory) == peaks_of(b.memory) &&
         a.memory.num_allocations == b.memory.num_allocations &&
         a.workspace_peak == b.workspace_peak;
}

void add_to_classes(std::vector<RankClass>& classes, const std::vector<int>& ranks, RunPlan plan) {
  for (RankClass& c : classes) {
    if (!same_memory(c.plan, plan)) continue;
    const auto middle = c.ranks.insert(c.ranks.end(), ranks.begin(), ranks.end());
    std::inplace_merge(c.ranks.begin(), middle, c.ranks.end());
    return;
  }
  classes.push_back({ranks, std::move(plan)});
}

// The memory that a step does not change.
void check_memory(const Kind& kind, const RunPlan& plan) {
  for (const Tag tag : {Tag::kWeights, Tag::kGradients, Tag::kOptimizer, Tag::kCommunication})
    ASHLAR_ASSERT(kind.signature.peaks[size_t(tag)] == plan.memory.tags[size_t(tag)].peak_bytes);
}

// A whole step of the first rank of each kind.
std::vector<KindPlan> plan_kinds(const PlannedMesh& mesh, const std::vector<Kind>& kinds,
                                 Log& log) {
  Progress progress(log, "counting a step of each kind of rank", int64_t(kinds.size()), "kinds");
  std::mutex progress_mutex;
  std::vector<KindPlan> plans(kinds.size());
  mesh.workers.run(int64_t(kinds.size()), [&](int64_t i, int) {
    const Kind& kind = kinds[size_t(i)];
    plans[size_t(i)] = train::plan_kind(mesh.recipe, mesh.compute, mesh.num_ranks, kind.ranks,
                                        mesh.rank_threads, &mesh.plans);
    check_memory(kind, plans[size_t(i)].first);
    const std::lock_guard lock(progress_mutex);
    progress.advance(1);
  });
  return plans;
}

}  // namespace

MeshPlan plan_mesh(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank,
                   int num_threads, int ranks_per_node, Log* log, const train::ComputeDevice& on) {
  Log silent([](std::string_view) {});
  if (!log) log = &silent;
  MeshPlan plan;
  plan.parallel = resolve_parallel(recipe, num_ranks);
  Threads rank_threads(train::planned_threads(recipe, num_threads));
  if (on.spec) {
    ASHLAR_REQUIRE(num_ranks == 1, kConfig, "{} ranks on GPUs, which serve one rank so far",
                   num_ranks);
    plan.device = *on.spec;
    if (!rank) rank = 0;
  }
  if (rank) {
    ASHLAR_REQUIRE(0 <= *rank && *rank < num_ranks, kConfig,
                   "rank {} of {} ranks; expected 0 to {}", *rank, num_ranks, num_ranks - 1);
    const std::span kind(&*rank, 1);
    plan.classes.push_back(
        {{*rank},
         train::plan_kind(recipe, compute, num_ranks, kind, rank_threads, nullptr, on).first});
    return plan;
  }
  Threads workers(0);
  parallel::SharedMuonPlans muon_plans;
  const PlannedMesh mesh{recipe,       compute, num_ranks, ranks_per_node,
                         rank_threads, workers, muon_plans};
  const RankCounts counts = [&] {
    Progress progress(*log, "counting ranks", num_ranks, "ranks");
    return count_ranks(mesh, progress);
  }();
  train::KernelCosts& all = plan.costs.emplace(counts.updates);
  std::vector<KindPlan> plans = plan_kinds(mesh, counts.kinds, *log);
  for (size_t i = 0; i < plans.size(); ++i) {
    const Kind& kind = counts.kinds[i];
    // The work of their optimizers, which differs, is in the sum already.
    train::add(all, plans[i].costs);
    train::add(all, kind.update, -int64_t(kind.ranks.size()));
    add_to_classes(plan.classes, kind.ranks, std::move(plans[i].first));
  }
  plan.checkpoint = counts.meter.size();
  return plan;
}

}  // namespace ashlar::plan
