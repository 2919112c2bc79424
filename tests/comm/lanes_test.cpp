// Lanes: order within one, none between two, failures that end all, memory that only lanes in use
// take.
#include <gtest/gtest.h>

#include <chrono>

#include "ashlar/comm/measuring.h"
#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/lane_checks.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;

const Options kSmallLanes{30.0, 1 << 16};

TEST(Lanes, SumsOnManyAtOnceAreExact) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    Allocator allocator(Device::kCpu);
    run_ranks(num_ranks, kSmallLanes, allocator, [](Group& world) {
      for (int round = 0; round < 3; ++round) check_lanes(world);
    });
  }
}

TEST(Lanes, DoNotWaitForEachOther) {
  Allocator allocator(Device::kCpu);
  run_ranks(3, kSmallLanes, allocator, [](Group& world) { check_lanes_do_not_wait(world); });
}

// Whether a delayed bulk operation was still under way when a sum that was queued behind it ended.
bool passes(bool one_lane) {
  bool passed = false;
  Allocator allocator(Device::kCpu);
  run_ranks(2, kSmallLanes, allocator, [&](Group& world) {
    keep_one_lane(world, one_lane);
    const auto bulk = everybody(world, "bulk", "bulk"), sums = everybody(world, "sums", "sums");
    delay(*bulk, 0.5);
    std::vector<float> large(1000, 1.0f), small(10, 1.0f);
    Work slow = bulk->all_reduce(tensor_of(large), tensor_of(large), "bulk");
    sums->all_reduce(tensor_of(small), tensor_of(small), "sum").wait();
    if (world.rank() == 0) passed = !slow.done();
    slow.wait();
    require(large[7] == 2.0f && small[7] == 2.0f, "sums");
  });
  return passed;
}

TEST(Lanes, ADelayHoldsUpItsOwnLaneOnly) {
  EXPECT_TRUE(passes(false));
  EXPECT_FALSE(passes(true));
}

struct Ending {
  std::string first;               // what run_ranks rethrew
  std::vector<std::string> heard;  // by each rank, where it waited
  double seconds = 0;
};

Ending end_of(function_ref<void(Group& world)> body) {
  constexpr int kRanks = 4;
  Ending ending;
  ending.heard.resize(kRanks);
  const auto start = std::chrono::steady_clock::now();
  Allocator allocator(Device::kCpu);
  try {
    run_ranks(kRanks, Options{60.0, 1 << 16}, allocator, [&](Group& world) {
      try {
        body(world);
      } catch (const Error& error) {
        ending.heard[size_t(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const Error& error) {
    ending.first = error.what();
  }
  ending.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ending;
}

// Nobody waits on the lane that fails: all wait on another, for a rank that will never come there.
TEST(Lanes, AFailureOnOneEndsWaitsOnAll) {
  for (int trial = 0; trial < 50; ++trial) {
    const Ending ending = end_of([&](Group& world) {
      const auto a = everybody(world, "a", "first"), b = everybody(world, "b", "second");
      const bool odd = world.rank() == trial % 4;
      std::vector<float> data(odd ? 999 : 1000);
      const Work fails = a->all_reduce(tensor_of(data), tensor_of(data), "grads");
      const Transfer to{(world.rank() + 1) % 4, tensor_of(data)};
      b->send_receive({&to, 1}, {}, "nobody receives").wait();
    });
    const std::string reason = "calls all_reduce 'grads' (number 0 of group a)";
    EXPECT_NE(ending.first.find(reason), std::string::npos) << ending.first;
    for (const std::string& heard : ending.heard)
      EXPECT_NE(heard.find(reason), std::string::npos) << heard;
    EXPECT_LT(ending.seconds, 5);
  }
}

// The body leaves while operations wait on three lanes; their memory is let go first.
TEST(Lanes, LeavingWithWorkOnAllIsQuickAndToldOnce) {
  for (int trial = 0; trial < 50; ++trial) {
    const Ending ending = end_of([&](Group& world) {
      std::vector<double> first(20000), second(20000), third(20000);
      const auto a = everybody(world, "a", "first"), b = everybody(world, "b", "second");
      Work works[] = {a->all_reduce(tensor_of(first), tensor_of(first), "late"),
                      b->all_reduce(tensor_of(second), tensor_of(second), "late"),
                      world.all_reduce(tensor_of(third), tensor_of(third), "late")};
      if (world.rank() == trial % 4) ASHLAR_FAIL(kData, "bad sample {}", trial);
      for (const auto* group : {&a, &b}) (*group)->barrier("never").wait();
      for (Work& work : works) work.wait();
    });
    EXPECT_EQ(ending.first.substr(0, ending.first.find(" [rank ")),
              fmt::format("bad sample {}", trial));
    EXPECT_LT(ending.seconds, 5);
  }
}

TEST(Lanes, OnlyThoseInUseTakeMemory) {
  Allocator meta(Device::kMeta);
  const Options options{30.0, 1 << 12};
  const auto lanes = [&] { return meta.counts().total.current_bytes / options.staging_bytes; };
  RecordingWorld recording(1, 4, options, meta);
  Group& world = recording.group();
  EXPECT_EQ(lanes(), 1);
  const auto alone = world.split(
      "alone",
      [](int rank) {
        return SplitKey{rank, 0};
      },
      "unused");
  const auto none = world.split(
      "none",
      [](int rank) {
        return SplitKey{rank == 0 ? 0 : -1, 0};
      },
      "unused");
  const auto same = everybody(world, "same", "");
  EXPECT_EQ(lanes(), 1);
  const auto sums = everybody(world, "sums", "sums"), more = everybody(world, "more", "sums");
  EXPECT_EQ(lanes(), 2);
  const auto part = sums->split("part", [](int rank) { return SplitKey{rank / 2, rank}; });
  EXPECT_EQ(lanes(), 2);
  const auto bulk = part->split(
      "bulk",
      [](int rank) {
        return SplitKey{0, rank};
      },
      "bulk");
  EXPECT_EQ(lanes(), 3);
}

}  // namespace
}  // namespace ashlar::comm
