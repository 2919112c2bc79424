// Where a simulated step and the recorded steps of a run part: by kernel, by phase, by wait.
//
// Both sides are files in Chrome's trace-event format whose events say the same: the run's
// (docs/formats/trace.md), and the timeline that a simulation wrote (sim/perfetto.h).
#pragma once

#include <map>
#include <string>

#include "ashlar/core/files.h"

namespace ashlar::plan {

// Seconds of a step on the mean rank.
struct StepSums {
  double step_s = 0;  // from the first to the last event of the mean rank's step
  double kernels_s = 0, waits_s = 0, posts_s = 0;
  // step_s less these: the loader, full lanes, the rank's own work between kernels
  double rest_s() const { return step_s - kernels_s - waits_s - posts_s; }
  std::map<std::string, double> kernels;  // by op
  std::map<std::string, double> phases;   // kernels, waits and posts, by phase
  std::map<std::string, double> waits;    // by what is waited for
  int num_ranks = 0, num_steps = 0;
};

// The recorded steps of a run: of DIRECTORY, or of DIRECTORY/trace if that exists.
// Errors   kData: no trace files, a damaged one, one of a dry run; kStorage.
StepSums recorded_sums(FileSystem& files, const std::string& directory);
// A timeline of `ashlar plan simulate --perfetto`.
// Errors   kData: another file; kStorage.
StepSums simulated_sums(FileSystem& files, const std::string& path);

// The memory of a run's rank 0 after its first step, by its own word (docs/metrics.md); 0: unknown.
struct MemoryRow {
  int64_t allocated_bytes = 0;  // by the rank's allocator, which holds what the dry run plans
  int64_t resident_bytes = 0;   // of the process, with everything that no allocator counts
  int64_t ranks = 0;            // in that process
};
// The last such row of metrics.jsonl in DIRECTORY or in the directory above it.
MemoryRow memory_row(FileSystem& files, const std::string& directory);

// Errors   kConfig: unlike numbers of ranks.
std::string describe_comparison(const StepSums& recorded, const StepSums& simulated,
                                const MemoryRow& memory);
std::string comparison_json(const StepSums& recorded, const StepSums& simulated,
                            const MemoryRow& memory);

}  // namespace ashlar::plan
