#include "ashlar/data/loader_state.h"

#include <bit>

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

}  // namespace

std::vector<NamedIntegers> to_arrays(const LoaderState& state) {
  return {{"consumed", {state.consumed}},
          {"counts", state.counts},
          {"position", {state.position}},
          {"global_batch", {state.global_batch}},
          {"num_streams", {state.num_streams}},
          {"seed", {std::bit_cast<int64_t>(state.seed)}},
          {"fingerprint", {std::bit_cast<int64_t>(state.fingerprint)}}};
}

LoaderState loader_state_from(std::span<const NamedIntegers> arrays) {
  constexpr size_t kNumArrays = 7;
  LoaderState state;
  state.consumed = count(arrays, "consumed");
  state.counts = find(arrays, "counts");
  state.position = count(arrays, "position");
  state.global_batch = count(arrays, "global_batch");
  state.num_streams = count(arrays, "num_streams");
  state.seed = std::bit_cast<uint64_t>(one(arrays, "seed"));
  state.fingerprint = std::bit_cast<uint64_t>(one(arrays, "fingerprint"));
  ASHLAR_REQUIRE(arrays.size() == kNumArrays, kCorrupt,
                 "the loader state has {} arrays; expected {}", arrays.size(), kNumArrays);
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
