// The disk under a directory, and whether a run can live with it.
#pragma once

#include <optional>
#include <string>

#include "ashlar/bench/machine/part.h"
#include "ashlar/core/files.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::bench {

struct StorageOptions {
  std::optional<Recipe> recipe;  // whose needs are compared with what the disk gives
  double step_s = 0;             // of a step of that run; 0: unknown
  int run_ranks = 0;             // of that run; 0: as many as measure
  // 0: 1 GiB and 1 s, or less if quick.
  int64_t file_bytes = 0;  // of all ranks together
  double row_s = 0;
};
Findings measure_storage(const Rig& rig, const StorageOptions& options, FileSystem& files);

// The pages that a run's loader reads of its datasets, in its real order, with cold caches.
struct Scatter {
  int64_t steps = 0, sequences = 0;     // of a step
  double bytes = 0;                     // of a step's tokens
  double pages = 0;                     // distinct, of a step
  double faults = 0, device_bytes = 0;  // of a step: major page faults, bytes read by the device
  double cached = 0;                    // largest share of a token file that was cached before
  int64_t token_bytes = 0;
  // Pages over those of contiguous reads; at least 1.
  double sigma() const;
};
// On one rank, all sequences of so many steps.  Errors of data::open_sources.
Scatter measure_scatter(FileSystem& files, const Recipe& recipe, int64_t steps);

// The numbers that decide; absent ones are unknown.
struct StorageGives {
  std::optional<double> iops, read_gbps, write_gbps;
};
struct StorageNeeds {
  double sequences = 0, tokens = 0, token_bytes = 0, sigma = 1;
  bool sigma_is_measured = false;
  double checkpoint_bytes = 0;
  int64_t checkpoint_every = 0;  // steps; 0: none between
  double step_s = 0;             // 0: unknown
};
// The needs of the run beside what the disk gives, in lines, and a judgement of each that is known:
// kGood or kBad.
struct NeedsReport {
  std::string text;
  std::vector<machine::Judgement> judgements;
  std::vector<std::string> rows;
};
NeedsReport compare_needs(const StorageNeeds& needs, const StorageGives& gives);

}  // namespace ashlar::bench
