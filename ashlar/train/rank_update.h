// The state that a rank keeps, the work of its optimizer, and its part of a checkpoint, counted
// without a trainer of its own.  Ranks with the same share of the model differ only in the place of
// their shards, so the trainer of one of them knows this of the others.
#pragma once

#include "ashlar/checkpoint/save/node_snapshot.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/parallel/zero.h"
#include "ashlar/train/dry_rank.h"

namespace ashlar::train {

struct RankUpdate {
  // The memory that depends on the place of the shard; the staging memory of a communicator is in
  // it, as large for all ranks.
  MemoryCounts memory;
  int64_t workspace_bytes = 0;  // of gradient norm and optimizer
  KernelCosts costs;            // likewise
  checkpoint::NodeShare share;  // what the rank writes, without buffers
};

// rank: has the same share of the model as the rank of `like`.  Any thread.
RankUpdate count_update(const Trainer& like, int rank);

// The events of a step in which the rank differs from `like`, in a trace: those of the gradient
// norm, of the optimizer, and of each work on its shard.  The operations of the optimizer are of
// the trace's group 0, which stands for like.model().muon().group().
struct OwnEvents {
  size_t norm_end = 0, update_end = 0;
  std::vector<size_t> work_ends;
};
void trace_own(const Trainer& like, int rank, std::span<const parallel::Zero::ShardWork> works,
               function_ref<void(const Trace&, const OwnEvents&)> read);

}  // namespace ashlar::train
