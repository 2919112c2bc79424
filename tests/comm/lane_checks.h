// Operations on several lanes at once, as a body of a rank for every engine.
#pragma once

#include <array>
#include <memory>

#include "tests/comm/checks.h"

namespace ashlar::comm::testing_support {

inline std::unique_ptr<Group> everybody(const Group& world, const char* name, const char* lane) {
  return world.split(
      name,
      [](int rank) {
        return SplitKey{0, rank};
      },
      lane);
}

// Many sums of different lengths under way on three lanes and the world's, two groups on one of
// them; waited for last first.
inline void check_lanes(Group& world) {
  const std::array groups = {everybody(world, "a", "first"), everybody(world, "b", "second"),
                             everybody(world, "c", "third"), everybody(world, "d", "third"),
                             everybody(world, "e", "")};
  constexpr int kWorks = 400;
  const auto length = [](int k) { return 1 + k % 7 * 500; };
  std::vector<std::vector<int64_t>> data;
  for (int k = 0; k < kWorks; ++k)
    data.push_back(data_of<int64_t>(uint64_t(k), world.rank(), length(k)));
  std::vector<Work> works;
  for (int k = 0; k < kWorks; ++k) {
    const Tensor sum = tensor_of(data[size_t(k)]);
    works.push_back(groups[size_t(k) % groups.size()]->all_reduce(sum, sum, "lanes"));
  }
  for (int k = kWorks - 1; k >= 0; --k) {
    works[size_t(k)].wait();
    require_equal(
        data[size_t(k)], length(k),
        [&](int64_t i) { return exact_sum<int64_t>(uint64_t(k), world.size(), i); },
        "one of many on lanes", world);
  }
}

// Rank 0 queues the bulk first, the others the small sum: on lanes of their own neither waits for
// the other.
inline void check_lanes_do_not_wait(Group& world) {
  const auto bulk = everybody(world, "bulk", "bulk"), sums = everybody(world, "sums", "sums");
  std::vector<float> large = data_of<float>(1, world.rank(), 50000);
  std::vector<float> small = data_of<float>(2, world.rank(), 10);
  Work waits;
  if (world.rank() == 0) waits = bulk->all_reduce(tensor_of(large), tensor_of(large), "bulk");
  sums->all_reduce(tensor_of(small), tensor_of(small), "sum").wait();
  if (world.rank() != 0) waits = bulk->all_reduce(tensor_of(large), tensor_of(large), "bulk");
  waits.wait();
  const auto sum_of = [&](uint64_t seed) {
    return [&world, seed](int64_t i) { return exact_sum<float>(seed, world.size(), i); };
  };
  require_equal(large, 50000, sum_of(1), "bulk", world);
  require_equal(small, 10, sum_of(2), "sum beside the bulk", world);
}

}  // namespace ashlar::comm::testing_support
