// The trace files of a dry run: what every rank of a mesh does in a step, in order.
#pragma once

#include <optional>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/train/plan.h"

namespace ashlar::plan {

inline constexpr int kMaxTracedRanks = 64;  // a file has some 300 bytes an event

// Writes DIRECTORY/dry-rank-R.json (docs/formats/trace.md) for every rank, or for `rank` alone.
// on: the device planned for.
// Errors   kConfig: more than kMaxTracedRanks ranks and none chosen; no such rank.
void write_traces(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank,
                  FileSystem& files, const std::string& directory, Log& log,
                  const train::ComputeDevice& on = {});

}  // namespace ashlar::plan
