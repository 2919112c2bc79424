// The writers of a run's checkpoints: every rank writes its own part, or, if parts are small, one
// rank of each machine writes for all of it (checkpoint/save/node_snapshot.h).
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
  int mine = 0;            // index in `ranks` of this rank, or of the one that writes for it
  // Set if this rank's machine has one writer; null: the rank writes its own part.
  std::unique_ptr<checkpoint::NodeSnapshot> snapshot;
};

// Whether one rank of each machine writes for all, if the rank with most to write has so many
// bytes.
inline bool gathers(int64_t busiest_bytes, int64_t gather_mib) {
  return busiest_bytes < gather_mib << 20;
}

// A writer has a file of a component for every box that its most cut tensor has.  kConfig if these
// are too many for file systems; the error has their number and what to change.
void check_files(const checkpoint::NodeShare& written);

// Every rank calls it.  share: with live data, which outlive the snapshot.  If ranks of a machine
// cannot share memory, or would take more than a quarter of the machine's or than
// `checkpoint.arena_mib` for each of them, every rank writes its own part, with a warning by rank
// 0.
Writers choose_writers(comm::Group& ranks, checkpoint::NodeShare share,
                       const CheckpointSpec& recipe, Log& log);

}  // namespace ashlar::train
