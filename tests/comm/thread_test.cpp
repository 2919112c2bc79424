// Collectives on threads, for worlds of 1 to 8.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "ashlar/comm/measuring.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/checks.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;

// Staging memory so small that long sums take many slices.
const Options kSmall{30.0, 1 << 16};

class Worlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Thread, Worlds, testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(Worlds, EveryOperationIsExact) {
  Allocator allocator(Device::kCpu);
  run_ranks(GetParam(), kSmall, allocator, [](Group& world) { check_operations(world); });
}

TEST_P(Worlds, ManyWorksInFlight) {
  Allocator allocator(Device::kCpu);
  run_ranks(GetParam(), kSmall, allocator, [](Group& world) { check_many_in_flight(world); });
}

TEST(Self, EveryOperationIsACopy) {
  Allocator allocator(Device::kCpu);
  SelfWorld world(allocator);
  check_operations(world.group());
  check_many_in_flight(world.group());
  EXPECT_EQ(allocator.counts().total.peak_bytes, 0);
}

TEST_P(Worlds, ALineOfRanks) {
  Allocator allocator(Device::kCpu);
  run_ranks(GetParam(), kSmall, allocator, [](Group& world) { check_line(world); });
}

TEST(Thread, RowsAndColumnsOfAGrid) {
  Allocator allocator(Device::kCpu);
  run_ranks(6, kSmall, allocator, [](Group& world) { check_grid(world, 3); });
  run_ranks(8, kSmall, allocator, [](Group& world) { check_grid(world, 4); });
  run_ranks(7, kSmall, allocator, [](Group& world) { check_grid(world, 1); });
}

TEST(Thread, OperationsRunInSubgroups) {
  Allocator allocator(Device::kCpu);
  run_ranks(8, kSmall, allocator, [](Group& world) {
    // 3, 2, and one alone; rank 3 and 5 in none.
    const int colors[] = {0, 1, 0, -1, 1, -1, 0, 2};
    const auto group = world.split("part", [&](int rank) { return SplitKey{colors[rank], 0}; });
    require((colors[world.rank()] < 0) == (group == nullptr), "negative colors are in no group");
    if (group) check_operations(*group);
  });
}

TEST(Thread, WorkCompletesWhileTheCallerComputes) {
  Allocator allocator(Device::kCpu);
  run_ranks(2, Options{30.0}, allocator, [](Group& world) {
    std::vector<float> data = data_of<float>(1, world.rank(), 1 << 20);
    Work work = world.all_reduce(tensor_of(data), tensor_of(data), "overlap");
    const auto start = std::chrono::steady_clock::now();
    volatile double busy = 1;
    while (!work.done()) {
      for (int i = 0; i < 1000; ++i) busy = busy * 1.0000001;
      require(std::chrono::steady_clock::now() - start < std::chrono::seconds(25),
              "not done while the caller computes");
    }
    require_equal(
        data, 1 << 20, [](int64_t i) { return exact_sum<float>(1, 2, i); }, "sum", world);
    work.wait();
  });
}

// Data whose sum depends on the order: rank 0 first, then 1, 2, ...
TEST(Thread, CountsMayGoBeforeTheWorkIsDone) {
  Allocator allocator(Device::kCpu);
  run_ranks(3, kSmall, allocator, [](Group& world) {
    delay(world, 0.01);  // operations begin after the counts have gone
    std::vector<int32_t> all(6, -1);
    const int64_t begins[] = {0, 3, 4, 6};
    const Tensor own = tensor_of(all).slice(begins[world.rank()], begins[world.rank() + 1]);
    std::fill_n(own.as<int32_t>(), own.numel(), world.rank());
    std::vector<int64_t> counts = {3, 1, 2};
    Work work = world.all_gather(own, tensor_of(all), "gather", counts);
    counts.assign(3, 0);
    work.wait();
    require(all == std::vector<int32_t>{0, 0, 0, 1, 2, 2}, "gathered by the counts of the call");
  });
}

TEST(Thread, SumsInRankOrderWhateverTheSlices) {
  Allocator allocator(Device::kCpu);
  constexpr int kRanks = 5, kLength = 5003;
  const auto value = [](int rank, int64_t i) {
    return float(int64_t(hash(9, rank, i))) * (rank % 2 == 0 ? 1e-12f : 1e-15f);
  };
  int64_t num_rounding = 0;
  for (const int64_t staging : {int64_t{320}, int64_t{4096}, int64_t{1} << 20}) {
    run_ranks(kRanks, Options{30.0, staging}, allocator, [&](Group& world) {
      std::vector<float> data(kLength);
      std::vector<bf16> small(kLength);
      for (int64_t i = 0; i < kLength; ++i) {
        data[size_t(i)] = value(world.rank(), i);
        small[size_t(i)] = bf16(data[size_t(i)]);
      }
      world.all_reduce(tensor_of(data), tensor_of(data), "order").wait();
      world.all_reduce(tensor_of(small), tensor_of(small), "order").wait();
      for (int64_t i = 0; i < kLength; ++i) {
        float forward = value(0, i), backward = value(kRanks - 1, i), wide = bf16(value(0, i));
        for (int rank = 1; rank < kRanks; ++rank) {
          forward += value(rank, i);
          backward += value(kRanks - 1 - rank, i);
          wide += float(bf16(value(rank, i)));
        }
        require(data[size_t(i)] == forward, "not in rank order");
        require(small[size_t(i)].bits == bf16(wide).bits, "bf16 is not summed in fp32");
        if (world.rank() == 0 && forward != backward) ++num_rounding;
      }
    });
  }
  EXPECT_GT(num_rounding, kLength / 4);  // the order did matter
}

TEST(Thread, StagingMemoryIsCountedAndBounded) {
  Allocator allocator(Device::kCpu);
  run_ranks(3, Options{30.0, 1000 * 64}, allocator, [&](Group& world) {
    world.barrier("all are there").wait();
    require(allocator.counts().tags[size_t(Tag::kCommunication)].current_bytes == 3 * 64'000,
            "staging memory");
    world.barrier("none has left").wait();
  });
  EXPECT_EQ(allocator.counts().total.current_bytes, 0);
  try {
    run_ranks(3, Options{30.0, 128}, allocator, [](Group&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    const std::string what = error.what();
    EXPECT_EQ(what.substr(0, what.find(" [rank ")),
              "staging_bytes is 128 but 3 ranks need at least 192");
  }
}

}  // namespace
}  // namespace ashlar::comm
