// Where a run stands in its data: a value, small, the same on every rank.
//
// Nothing in it depends on the micro batch, nor, where a global batch ends, on the number of ranks.
// The samples of a run are numbered 0, 1, 2, ... over all datasets; `consumed` of them lie in
// finished global batches.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ashlar::data {

struct NamedIntegers {
  std::string name;
  std::vector<int64_t> values;
};

struct LoaderState {
  int64_t consumed = 0;  // samples of finished global batches
  std::vector<int64_t>
      counts;            // [datasets] how many of those came from each; the epoch of dataset d
                         // is counts[d] / its number of samples
  int64_t position = 0;  // samples that this rank has taken of the global batch under way
  int64_t global_batch = 0, num_streams = 0;  // of that batch; they matter only if position > 0
  uint64_t seed = 0;
  uint64_t fingerprint = 0;  // of the datasets and of all that numbers their samples
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

// For a checkpoint: one array per member.
std::vector<NamedIntegers> to_arrays(const LoaderState& state);
// kCorrupt if an array is missing, unknown, of another length or negative where it cannot be.
LoaderState loader_state_from(std::span<const NamedIntegers> arrays);

}  // namespace ashlar::data
