// Saving and loading of checkpoints: how long training is blocked, how long a save and a load take,
// beside the disk itself and a plain synchronous checkpoint (checkpoint_baseline.h).  Every repeat
// takes them in another order.
//
// Ranks are threads of this process.  Around each save they compute, as training would: a loop that
// takes `step_s` alone.
//
//   block      the rank waited: in save() and in before_update(), which stands behind the loop
//   slowdown   time of the loop during the save over its time alone
//   save       from save() until the step is committed
//   load       into the layout that was saved, and into another; nothing of the files is in memory
//   raw        the disk itself: one file of as many bytes a rank (checkpoint_baseline.h)
//
// Times are of the slowest rank.  Loaded elements are compared with those that were saved.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ashlar/bench/checkpoint_workload.h"
#include "ashlar/core/statistics.h"

namespace ashlar::bench {

struct CheckpointOptions {
  std::string directory = "runs/bench-checkpoint";  // made, and removed at the end
  int64_t bytes = int64_t(3) << 30;
  int ranks = 2;
  int repeats = 5;
  double step_s = 1.0;
  double rest_s = 0;                   // of doing nothing before everything that is timed
  bool sync = true;                    // false: nothing waits for the disk, on either side
  bool baselines = true;               // raw and plain too
  std::vector<std::string> workloads;  // by name; empty: all
};

struct CheckpointTimes {
  Summary save, load, other_load;  // seconds
};

struct CheckpointRow {
  CheckpointWorkload workload;
  int64_t bytes = 0, files = 0, index_bytes = 0;  // of a step
  int64_t rank_bytes = 0;                         // of the busiest writer
  double first_block_s = 0;
  Summary block, slowdown;
  CheckpointTimes ashlar, plain;
  Summary raw_write, raw_read;
  double cpu_s = 0;            // of a save, without the loop
  int64_t memory_bytes = 0;    // at the peak of a save, above what the ranks hold
  int64_t wrong_elements = 0;  // of all loads
};

// Calls `done` after each workload.
// Errors   kLaunch: under a launcher, since the ranks are threads of this process; kConfig: a
//          workload of another name; kStorage.
void measure_checkpoints(const CheckpointOptions& options,
                         const std::function<void(const CheckpointRow&)>& done);

std::string checkpoint_head(const CheckpointOptions& options);
std::string to_text(const CheckpointRow& row, const CheckpointOptions& options);
std::string to_json_line(const CheckpointRow& row, const CheckpointOptions& options);
// The tensors of a workload and the layouts, for other programs that are to save the same.
std::string describe(const CheckpointWorkload& workload);

}  // namespace ashlar::bench
