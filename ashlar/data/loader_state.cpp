#include "ashlar/data/loader_state.h"

#include <bit>
#include <numeric>

#include "ashlar/core/error.h"

namespace ashlar::data {
namespace {

const std::vector<int64_t>& find(std::span<const NamedIntegers> arrays, std::string_view name) {
  for (const NamedIntegers& array : arrays)
    if (array.name == name) return array.values;
  ASHLAR_FAIL(kCorrupt, "the loader state has no array '{}'; expected one", name);
}

int64_t one(std::span<const NamedIntegers> arrays, std::string_view name) {
  const std::vector<int64_t>& values = find(arrays, name);
  ASHLAR_REQUIRE(values.size() == 1, kCorrupt, "loader array '{}' has {} values; expected 1", name,
                 values.size());
  return values.front();
}

int64_t count(std::span<const NamedIntegers> arrays, std::string_view name) {
  const int64_t value = one(arrays, name);
  ASHLAR_REQUIRE(value >= 0, kCorrupt, "loader array '{}' is {}; expected 0 or more", name, value);
  return value;
}

// One value, of at least 0, for each dataset.
std::vector<int64_t> by_dataset(std::span<const NamedIntegers> arrays, std::string_view name,
                                size_t num_datasets) {
  const std::vector<int64_t>& values = find(arrays, name);
  ASHLAR_REQUIRE(values.size() == num_datasets, kCorrupt,
                 "loader array '{}' has {} values; expected one for each of {} datasets", name,
                 values.size(), num_datasets);
  for (const int64_t value : values)
    ASHLAR_REQUIRE(value >= 0, kCorrupt, "loader array '{}' holds {}; expected 0 or more", name,
                   value);
  return values;
}

constexpr size_t kNumArrays = 11, kNumOlderArrays = 7;

}  // namespace

std::vector<NamedIntegers> to_arrays(const LoaderState& state) {
  return {{"consumed", {state.consumed}},
          {"counts", state.counts},
          {"position", {state.position}},
          {"global_batch", {state.global_batch}},
          {"num_streams", {state.num_streams}},
          {"seed", {std::bit_cast<int64_t>(state.seed)}},
          {"fingerprint", {std::bit_cast<int64_t>(state.fingerprint)}},
          {"before", {state.before}},
          {"taken_before", state.taken_before},
          {"orders", state.orders},
          {"datasets", {state.datasets.begin(), state.datasets.end()}}};
}

LoaderState first_state(size_t num_datasets) {
  LoaderState state;
  state.counts.assign(num_datasets, 0);
  state.taken_before.assign(num_datasets, 0);
  state.orders.resize(num_datasets);
  std::iota(state.orders.begin(), state.orders.end(), 0);
  state.datasets.assign(num_datasets, 0);
  return state;
}

LoaderState loader_state_from(std::span<const NamedIntegers> arrays) {
  LoaderState state = first_state(find(arrays, "counts").size());
  state.consumed = count(arrays, "consumed");
  state.counts = find(arrays, "counts");
  state.position = count(arrays, "position");
  state.global_batch = count(arrays, "global_batch");
  state.num_streams = count(arrays, "num_streams");
  state.seed = std::bit_cast<uint64_t>(one(arrays, "seed"));
  state.fingerprint = std::bit_cast<uint64_t>(one(arrays, "fingerprint"));
  if (arrays.size() == kNumOlderArrays) {
    state.datasets.clear();
  } else {
    ASHLAR_REQUIRE(arrays.size() == kNumArrays, kCorrupt,
                   "the loader state has {} arrays; expected {}", arrays.size(), kNumArrays);
    state.before = count(arrays, "before");
    state.taken_before = by_dataset(arrays, "taken_before", state.counts.size());
    state.orders = by_dataset(arrays, "orders", state.counts.size());
    const std::vector<int64_t>& datasets = find(arrays, "datasets");
    ASHLAR_REQUIRE(datasets.size() == state.counts.size(), kCorrupt,
                   "loader array 'datasets' has {} values; expected {}", datasets.size(),
                   state.counts.size());
    state.datasets.assign(datasets.begin(), datasets.end());
  }
  int64_t sum = 0;
  for (const int64_t value : state.counts) {
    ASHLAR_REQUIRE(value >= 0 && value <= state.consumed - sum, kCorrupt,
                   "loader array 'counts' holds {}; expected values from 0 that add up to "
                   "'consumed', {}",
                   value, state.consumed);
    sum += value;
  }
  ASHLAR_REQUIRE(sum == state.consumed, kCorrupt,
                 "loader array 'counts' adds up to {}; expected 'consumed', {}", sum,
                 state.consumed);
  return state;
}

}  // namespace ashlar::data
