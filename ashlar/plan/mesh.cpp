// How it works.  plan_mesh does not run the step of every rank.  It makes every rank's trainer and
// runs its optimizer (kinds_of_ranks), which shows all that a step depends on (Signature).  Then it
// runs one whole step per signature.  The work of all ranks is
//
//   sum over ranks of the update + sum over kinds of (step - update) of the first rank * ranks
//
// where the copies that begin the gathers of ZeRO are each rank's own (DryRank::costs_of).
// Ranks of different kinds may still need the same memory at the same place: they become one class.
#include "ashlar/plan/mesh.h"

#include <algorithm>
#include <array>
#include <map>

namespace ashlar::plan {

namespace {

using train::DryRank;
using train::KernelCosts;
using train::RunPlan;

using Peaks = std::array<int64_t, kNumTags>;

Peaks peaks_of(const MemoryCounts& memory) {
  Peaks peaks;
  for (size_t tag = 0; tag < peaks.size(); ++tag) peaks[tag] = memory.tags[tag].peak_bytes;
  return peaks;
}

// All that a rank's step depends on: its coordinates, its memory without the workspace, and the
// workspace that the optimizer needs.
struct Signature {
  int pp, cp, tsp, tp;
  Peaks peaks;
  int64_t allocations, update_workspace_bytes;
  auto operator<=>(const Signature&) const = default;
};

// The ranks of one signature.
struct Kind {
  Signature signature;
  std::vector<int> ranks;
  KernelCosts update;  // of the first, without gathers
};

Signature signature_of(const DryRank& dry) {
  const parallel::Groups& groups = dry.trainer().model().groups();
  const MemoryCounts memory = dry.memory();
  return {groups.coordinate(parallel::Axis::kPp),
          groups.coordinate(parallel::Axis::kCp),
          groups.coordinate(parallel::Axis::kTsp),
          groups.coordinate(parallel::Axis::kTp),
          peaks_of(memory),
          memory.num_allocations,
          dry.step_memory().workspace_bytes};
}

// Adds the work of all optimizers to `updates`, and what all ranks save to `meter`.
std::vector<Kind> kinds_of_ranks(const Recipe& recipe, DType compute, int num_ranks,
                                 Threads& threads, KernelCosts& updates, CheckpointMeter& meter,
                                 Progress& progress) {
  std::vector<Kind> kinds;
  std::map<Signature, size_t> known;
  for (int rank = 0; rank < num_ranks; ++rank) {
    DryRank dry(recipe, compute, num_ranks, rank, threads);
    meter.add(dry.trainer());
    dry.update();
    const KernelCosts update = dry.costs_without_gathers();
    train::add(updates, update);
    const Signature signature = signature_of(dry);
    const auto [found, added] = known.try_emplace(signature, kinds.size());
    if (added) kinds.push_back({signature, {}, update});
    kinds[found->second].ranks.push_back(rank);
    progress.advance(1);
  }
  return kinds;
}

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

}  // namespace

MeshPlan plan_mesh(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank,
                   int num_threads, int ranks_per_node, Log* log) {
  Log silent([](std::string_view) {});
  if (!log) log = &silent;
  MeshPlan plan;
  plan.parallel = resolve_parallel(recipe, num_ranks);
  Threads threads(train::planned_threads(recipe, num_threads));
  if (rank) {
    ASHLAR_REQUIRE(0 <= *rank && *rank < num_ranks, kConfig,
                   "rank {} of {} ranks; expected 0 to {}", *rank, num_ranks, num_ranks - 1);
    const std::span kind(&*rank, 1);
    plan.classes.push_back(
        {{*rank}, train::plan_kind(recipe, compute, num_ranks, kind, threads).first});
    return plan;
  }
  KernelCosts& all = plan.costs.emplace();
  CheckpointMeter meter(recipe, num_ranks, ranks_per_node);
  std::vector<Kind> kinds;
  {
    Progress progress(*log, "counting ranks", num_ranks, "ranks");
    kinds = kinds_of_ranks(recipe, compute, num_ranks, threads, all, meter, progress);
  }
  Progress progress(*log, "counting a step of each kind of rank", int64_t(kinds.size()), "kinds");
  for (const Kind& kind : kinds) {
    train::KindPlan of_kind = train::plan_kind(recipe, compute, num_ranks, kind.ranks, threads);
    // The work of their optimizers, which differs, is in the sum already.
    train::add(all, of_kind.costs);
    train::add(all, kind.update, -int64_t(kind.ranks.size()));
    add_to_classes(plan.classes, kind.ranks, std::move(of_kind.first));
    progress.advance(1);
  }
  plan.checkpoint = meter.size();
  return plan;
}

}  // namespace ashlar::plan
