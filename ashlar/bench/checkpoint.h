// Saving and loading of checkpoints: the time for which training is blocked and the times of a save
// and a load, compared with the disk itself and with a plain synchronous checkpoint
// (checkpoint_baseline.h).  Every repeat runs them in another order.
//
// Ranks are threads of this process.  Around each save they compute, as training would: a loop that
// takes `step_s` alone.
//
//   block      the rank's waits: in save(), and in before_update() after the loop
//   slowdown   time of the loop during the save over its time alone
//   save       from save() until the step is committed
//   load       into the layout that was saved, and into another; no part of the files is cached
//   raw        the disk itself: one file of as many bytes for each rank (checkpoint_baseline.h)
//
// Times are of the slowest rank.  Loaded elements are compared with those that were saved.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ashlar/bench/checkpoint_workload.h"
#include "ashlar/core/statistics.h"

namespace ashlar::bench {

struct CheckpointBenchOptions {
  std::string directory = "runs/bench-checkpoint";  // made, and removed at the end
  int64_t bytes = int64_t(3) << 30;
  int ranks = 2;
  int repeats = 5;
  double step_s = 1.0;
  double rest_s = 0;                   // idle time before each timed part
  bool sync = true;                    // false: neither side waits for the disk
  bool baselines = true;               // measure raw and plain too
  std::vector<std::string> workloads;  // by name; empty: all
};

struct CheckpointTimes {
  Summary save, load, other_load;  // seconds
};

struct CheckpointRow {
  CheckpointWorkload workload;
  int64_t bytes = 0, files = 0, index_bytes = 0;  // of a step
  int64_t rank_bytes = 0;                         // the busiest writer's
  double first_block_s = 0;
  Summary block, slowdown;
  CheckpointTimes ashlar, plain;
  Summary raw_write, raw_read;
  double cpu_s = 0;            // of a save, without the loop
  int64_t memory_bytes = 0;    // the peak of a save, above the memory of the ranks' states
  int64_t wrong_elements = 0;  // in all loads
};

// Calls `done` after each workload.
// Errors   kLaunch: under a launcher, since the ranks are threads of this process; kConfig: an
//          unknown workload; kStorage.
void measure_checkpoints(const CheckpointBenchOptions& options,
                         const std::function<void(const CheckpointRow&)>& done);

std::string checkpoint_head(const CheckpointBenchOptions& options);
std::string to_text(const CheckpointRow& row, const CheckpointBenchOptions& options);
std::string to_json_line(const CheckpointRow& row, const CheckpointBenchOptions& options);
// The tensors of a workload and the layouts, so that other programs can save the same.
std::string describe(const CheckpointWorkload& workload);

}  // namespace ashlar::bench
