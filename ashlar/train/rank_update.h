// The state that a rank keeps, the work of its optimizer, and its part of a checkpoint, counted
// without a trainer of its own.  Ranks with the same share of the model differ only in the place of
// their shards, so the trainer of one of them knows this of the others.
#pragma once

#include "ashlar/checkpoint/save/node_snapshot.h"
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

}  // namespace ashlar::train
