#include "ashlar/plan/search_memory.h"

#include <algorithm>

namespace ashlar::plan {

std::vector<int> fullest_ranks(const ParallelSpec& resolved) {
  const int ranks = int(resolved.num_ranks()), of_a_stage = ranks / int(resolved.pp);
  std::vector<int> chosen = {0, of_a_stage - 1, ranks - of_a_stage, ranks - 1};
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

const RankMemory& LayoutMemory::fullest(const Recipe& recipe, const std::string& name) {
  const auto [found, added] = known_.try_emplace(name);
  if (!added) return found->second;
  Threads threads(train::planned_threads(recipe, 0));
  RankMemory& most = found->second;
  for (const int rank : fullest_ranks(resolve_parallel(recipe, num_ranks_))) {
    const train::RunPlan plan =
        train::plan_kind(recipe, compute_, num_ranks_, std::span(&rank, 1), threads).first;
    if (plan.memory.total.peak_bytes <= most.total_bytes) continue;
    most.rank = rank;
    most.total_bytes = plan.memory.total.peak_bytes;
    for (size_t tag = 0; tag < most.tag_bytes.size(); ++tag)
      most.tag_bytes[tag] = plan.memory.tags[tag].peak_bytes;
    most.workspace_peak = plan.workspace_peak;
  }
  return most;
}

}  // namespace ashlar::plan
