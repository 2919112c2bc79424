// Counts the state, the update and the part of a checkpoint of every rank of a mesh, without a
// trainer for each rank.
#pragma once

#include "ashlar/core/log.h"
#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/plan/checkpoint.h"
#include "ashlar/train/dry_rank.h"

namespace ashlar::plan {

using Peaks = std::array<int64_t, kNumTags>;
Peaks peaks_of(const MemoryCounts& memory);

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
  std::vector<int> ranks;     // ascending
  train::KernelCosts update;  // of the first, without gathers
};

// A mesh whose ranks are planned; `plans` are for all its trainers.
struct PlannedMesh {
  const Recipe& recipe;
  DType compute;
  int num_ranks, ranks_per_node;
  Threads& rank_threads;  // as many as a rank has
  Threads& workers;       // that plan
  parallel::SharedMuonPlans& plans;
};

struct RankCounts {
  std::vector<Kind> kinds;     // by first rank
  train::KernelCosts updates;  // of all ranks, without gathers
  CheckpointMeter meter;
};
RankCounts count_ranks(const PlannedMesh& mesh, Progress& progress);

}  // namespace ashlar::plan
