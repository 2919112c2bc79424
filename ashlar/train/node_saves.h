// Who writes a run's checkpoints: every rank its own part, or, where parts are small, one rank of
// each machine for all of them (checkpoint/save/node_snapshot.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/checkpoint/save/node_snapshot.h"
#include "ashlar/comm/group.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct Writers {
  std::vector<int> ranks;  // that write, ascending; rank 0 is the first
  int mine = 0;            // of this rank, or of the one that writes for it: a place in `ranks`
  // Of a rank whose machine has one writer; null: it writes its own part.
  std::unique_ptr<checkpoint::NodeSnapshot> snapshot;
};

// Whether ranks of which the busiest writes so many bytes let one of each machine write.
inline bool gathers(int64_t busiest_bytes, int64_t gather_mib) {
  return busiest_bytes < gather_mib << 20;
}

// A writer has a file of a component for every box that its most cut tensor has.  kConfig where
// these are more than file systems are to be asked for; names the count and what to change.
void check_files(const checkpoint::NodeShare& written);

// Every rank calls it.  share: with live data, which outlive the snapshot.  Where ranks of a
// machine cannot share memory, or would take more than a quarter of what the machine has or than
// `checkpoint.arena_mib` for each of them, every rank writes its own part, with a warning of rank
// 0's.
Writers choose_writers(comm::Group& ranks, checkpoint::NodeShare share,
                       const CheckpointSpec& recipe, Log& log);

}  // namespace ashlar::train
