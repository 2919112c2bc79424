// The position of a run in its data: a small value, the same on every rank.
//
// Nothing in it depends on the micro batch, nor, where a global batch ends, on the number of ranks.
// The samples of a run are numbered 0, 1, 2, ... over all datasets.  A blend, which is datasets
// with weights, may replace another between global batches (Loader::restore): `before` samples
// belong to earlier blends, and the next `consumed` to finished global batches of this one.
// Dataset d continues with its sample number taken_before[d] + counts[d], counted over all its
// epochs.
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
  int64_t consumed = 0;         // samples of finished global batches of this blend
  std::vector<int64_t> counts;  // [datasets] how many of those came from each
  int64_t position = 0;         // samples that this rank has taken of the current global batch
  int64_t global_batch = 0, num_streams = 0;  // of that batch; they matter only if position > 0
  uint64_t seed = 0;
  uint64_t fingerprint = 0;           // of the blend and of everything that orders its samples
  int64_t before = 0;                 // samples of the run before this blend
  std::vector<int64_t> taken_before;  // [datasets] how many of those came from each
  std::vector<int64_t> orders;        // [datasets] the number that shuffles the dataset
  std::vector<uint64_t> datasets;     // [datasets] fingerprints; none in states of older versions
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

// The number of the first sample after the state.
inline int64_t next_sample(const LoaderState& state) {
  return state.before + state.consumed;
}

// The state at the beginning of a run's first blend, of num_datasets datasets.
LoaderState first_state(size_t num_datasets);

// The state as a checkpoint holds it: one array per member.
std::vector<NamedIntegers> to_arrays(const LoaderState& state);
// kCorrupt if an array is missing, unknown, of another length or wrongly negative.  States of older
// versions lack the last four arrays, which are then those of a first blend.
LoaderState loader_state_from(std::span<const NamedIntegers> arrays);

}  // namespace ashlar::data
