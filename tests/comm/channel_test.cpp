// Channels: order, independence of lanes and of each other, faults, counters, memory.
#include "ashlar/comm/channel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <thread>

#include "ashlar/comm/measuring.h"
#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/channel_checks.h"
#include "tests/support/malloc_count.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;
using ashlar::testing_support::counts_mallocs;
using ashlar::testing_support::num_mallocs;

const Options kSmallChannels{30.0, 1 << 12};

TEST(Channel, MessagesKeepTheirOrderBothWaysRoundARing) {
  for (const int num_ranks : {2, 3, 4, 7}) {
    Allocator allocator(Device::kCpu);
    run_ranks(num_ranks, kSmallChannels, allocator, [](Group& world) {
      for (int round = 0; round < 2; ++round) check_channels(world);
      const auto half = world.split("half", [](int rank) { return SplitKey{rank % 2, -rank}; });
      check_channels(*half);
    });
  }
}

TEST(Channel, WaitsForNoLane) {
  for (const int num_ranks : {2, 3, 4}) {
    Allocator allocator(Device::kCpu);
    run_ranks(num_ranks, kSmallChannels, allocator, [](Group& world) {
      keep_one_lane(world, true);  // which lanes share is no matter of channels
      check_channels_do_not_wait(world);
    });
  }
}

// The first error of a world of 3 whose ranks exchange in a ring, twice; `bad` does so on rank 1
// before the second time.
std::string fault(double timeout_s, function_ref<void(std::vector<float>& data)> bad) {
  Allocator allocator(Device::kCpu);
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    run_ranks(3, Options{timeout_s, 1 << 12}, allocator, [&](Group& world) {
      std::vector<float> data(100), got(100);
      Ring ring(world);
      for (int round = 0; round < 2; ++round) {
        if (round == 1 && world.rank() == 1) bad(data);
        Work sends = ring.to_next->send(tensor_of(data), "up");
        ring.from_previous->receive(tensor_of(got), "up").wait();
        sends.wait();
      }
    });
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  return message;
}

TEST(Channel, FaultsAreNamedAndEndAll) {
  EXPECT_EQ(fault(30, [](auto&) { ASHLAR_FAIL(kNumeric, "loss is nan"); }),
            "loss is nan [rank 1 of 3]");
  const std::string odd = fault(30, [](auto& data) { data.resize(99); });
  EXPECT_NE(odd.find("send_receive 'up' (number 1 of group 1>2 activations)"), std::string::npos)
      << odd;
  EXPECT_NE(odd.find("sends 396 bytes in 1"), std::string::npos) << odd;
  const std::string late =
      fault(1, [](auto&) { std::this_thread::sleep_for(std::chrono::seconds(3)); });
  EXPECT_NE(late.find("(number 1 of group "), std::string::npos) << late;
  EXPECT_NE(late.find("activations): waited "), std::string::npos) << late;
  EXPECT_NE(late.find(" s; not arrived: rank 1;"), std::string::npos) << late;
}

TEST(Channel, ARankThatLeavesIsNamed) {
  Allocator allocator(Device::kCpu);
  try {
    run_ranks(2, kSmallChannels, allocator, [](Group& world) {
      std::vector<float> data(3);
      if (world.rank() == 1) return;
      world.channel(0, 1, "x")->send(tensor_of(data), "never").wait();
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 0 waits for rank 1, which has ended [rank 0 of 2]");
  }
}

// One row of traffic each way, the same events in the trace, no staging memory; real and recorded.
TEST(Channel, IsCountedAndTraced) {
  struct Seen {
    std::vector<TrafficRow> sent, received;
    std::vector<std::string> events;
    int64_t bytes;
  };
  const auto run = [](Group& world, Allocator& allocator, float* memory) {
    const int64_t before = allocator.counts().total.current_bytes;
    Ring ring(world);
    world.trace().start(TraceRoom{100, 100, 100});
    const Tensor data{reinterpret_cast<std::byte*>(memory), DType::kF32,
                      memory ? Device::kCpu : Device::kMeta, Shape{2, 5}};
    Tensor other = data;
    if (memory) other.data += data.bytes();
    for (int k = 0; k < 3; ++k) {
      Work sends = ring.to_next->send(data, "up");
      ring.from_previous->receive(other, "up").wait();
      sends.wait();
    }
    Seen seen{ring.to_next->group().traffic(),
              ring.from_previous->group().traffic(),
              {},
              allocator.counts().total.current_bytes - before};
    const Trace& trace = world.trace();
    for (const TraceEvent& e : trace.events())
      if (e.kind == TraceEvent::Kind::kPost)
        seen.events.push_back(fmt::format("{} {} {} {}", trace.text(e.name), trace.text(e.label),
                                          trace.group(e.group).name, e.bytes));
    world.trace().stop();
    return seen;
  };
  std::vector<Seen> real(3);
  std::deque<Allocator> allocators;
  for (int rank = 0; rank < 3; ++rank) allocators.emplace_back(Device::kCpu);
  run_ranks(
      3, kSmallChannels, [&](int rank) -> Allocator& { return allocators[size_t(rank)]; },
      [&](Group& world) {
        std::vector<float> memory(20);
        real[size_t(world.rank())] = run(world, allocators[size_t(world.rank())], memory.data());
      });
  for (int rank = 0; rank < 3; ++rank) {
    Allocator meta(Device::kMeta);
    RecordingWorld recording(rank, 3, kSmallChannels, meta);
    const Seen recorded = run(recording.group(), meta, nullptr);
    for (const Seen& seen : {recorded, real[size_t(rank)]}) {
      const std::vector<TrafficRow> sent{{Op::kSendReceive, "up", 3, 3 * 40, 0}};
      const std::vector<TrafficRow> received{{Op::kSendReceive, "up", 3, 0, 3 * 40}};
      EXPECT_EQ(seen.sent, sent);
      EXPECT_EQ(seen.received, received);
      EXPECT_EQ(seen.bytes, 0);
      EXPECT_EQ(seen.events, real[size_t(rank)].events);
      ASSERT_EQ(seen.events.size(), 6u);
      EXPECT_EQ(seen.events[0],
                fmt::format("send_receive up {}>{} activations 40", rank, (rank + 1) % 3));
    }
  }
}

TEST(Channel, SteadyMessagesAllocateNothing) {
  if (!counts_mallocs()) GTEST_SKIP() << "sanitizers bring an allocator of their own";
  Allocator allocator(Device::kCpu);
  int64_t before = 0, after = -1;
  run_ranks(3, kSmallChannels, allocator, [&](Group& world) {
    Ring ring(world);
    std::vector<float> up(100), down(100), from_up(100), from_down(100);
    const auto steps = [&](int num_steps) {
      for (int step = 0; step < num_steps; ++step) {
        Work works[] = {
            ring.to_next->send(tensor_of(up), "a label longer than any short string"),
            ring.to_previous->send(tensor_of(down), "down"),
            ring.from_previous->receive(tensor_of(from_up), "a label longer than any short string"),
            ring.from_next->receive(tensor_of(from_down), "down")};
        for (Work& work : works) work.wait();
      }
    };
    steps(200);
    for (int i = 0; i < 2; ++i) world.barrier("warm").wait();
    if (world.rank() == 0) before = num_mallocs();
    world.barrier("warm").wait();
    steps(200);
    world.barrier("warm").wait();
    if (world.rank() == 0) after = num_mallocs();
    world.barrier("warm").wait();
  });
  EXPECT_EQ(after - before, 0);
}

}  // namespace
}  // namespace ashlar::comm
