// Muted operations move and count nothing, and the ranks go on together afterwards; times of those
// that run add up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "ashlar/comm/measuring.h"
#include "ashlar/comm/thread/run_ranks.h"

namespace ashlar::comm {
namespace {

Tensor over(double& value) {
  return tensor_over(std::span(&value, 1));
}

const TrafficRow& sums_of(const std::vector<TrafficRow>& rows) {
  for (const TrafficRow& row : rows)
    if (row.label == "sum") return row;
  throw std::runtime_error("no operation was labelled sum");
}

TEST(Mute, LeavesOutOperationsOfEveryGroupAndComesBack) {
  Allocator allocator(Device::kCpu);
  run_ranks(2, {}, allocator, [](Group& world) {
    const auto pair = world.split("pair", [](int rank) { return SplitKey{0, rank}; });
    double value = 1 + world.rank();
    pair->all_reduce(over(value), over(value), "sum").wait();
    EXPECT_EQ(value, 3);
    const std::vector<TrafficRow> before = pair->traffic();
    world.barrier("settle").wait();
    mute(world, true);
    for (int i = 0; i < 100; ++i) {  // more than the queue has slots
      value = 7;
      pair->all_reduce(over(value), over(value), "sum").wait();
      EXPECT_EQ(value, 7);
    }
    EXPECT_EQ(pair->traffic(), before);
    mute(world, false);
    value = 1 + world.rank();
    pair->all_reduce(over(value), over(value), "sum").wait();
    EXPECT_EQ(value, 3);
    EXPECT_EQ(sums_of(pair->traffic()).launches, 2);
  });
}

TEST(Times, WaitingForALateRankCounts) {
  Allocator allocator(Device::kCpu);
  std::atomic<bool> waiting{false};
  run_ranks(2, {}, allocator, [&](Group& world) {
    double value = 1;
    if (world.rank() == 1) {
      while (!waiting) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    waiting = true;
    world.all_reduce(over(value), over(value), "sum").wait();
    const TrafficRow row = sums_of(world.traffic());
    EXPECT_GT(row.ran_s, 0);
    if (world.rank() == 0) {
      EXPECT_GT(row.waited_s, 0);
    }
  });
}

}  // namespace
}  // namespace ashlar::comm
