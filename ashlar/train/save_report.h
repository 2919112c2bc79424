// The times of a save by rank, for the console and metrics.jsonl.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "ashlar/checkpoint/writers/phases.h"
#include "ashlar/core/log.h"

namespace ashlar::train {

// ", slowest rank 3 on n07 (2.31 s)": in hashing, writing and syncing; "" unless there are several.
std::string slowest_rank(std::span<const checkpoint::RankTimes> ranks);
// Adds the members `phases` and `slow` to the row of a save or of reading back (docs/metrics.md).
void add_times(std::span<const checkpoint::RankTimes> ranks, nlohmann::ordered_json& row);
// A line for each slow rank and phase, at most four.
void warn_of_slow(std::span<const checkpoint::RankTimes> ranks, int64_t step, Log& log);

}  // namespace ashlar::train
