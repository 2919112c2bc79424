// The pulse of ranks that are threads: what it shows of their operations, and whom it names when
// one does not come.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "ashlar/comm/agree.h"
#include "ashlar/comm/channel.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/pulse_hang.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::comm {
namespace {

using ashlar::testing_support::TemporaryDirectory;
using PulsePages = std::map<int, PulsePage>;

void run_with_pulse(const TemporaryDirectory& run, int num_ranks,
                    const std::function<void(Group& world)>& body) {
  Allocator allocator(Device::kCpu);
  run_ranks(num_ranks, Options{}, allocator, [&](Group& world) {
    world.trace().show_in(std::make_unique<PulseWriter>(
        run.path(), PulseRank{.rank = world.rank(), .num_ranks = world.size()}));
    world.barrier("every rank has its page").wait();
    body(world);
  });
}

// The pages once so many ranks wait for an operation with this label.
PulsePages pages_while_waiting(const TemporaryDirectory& run, std::string_view label,
                               int num_waiting) {
  for (;;) {
    PulsePages pages = read_pulse(run.path());
    int waiting = 0;
    for (const auto& [rank, page] : pages)
      if (const PulseOperation* operation = page.awaited())
        waiting += operation->label == label && operation->started_ns > 0;
    if (waiting == num_waiting) return pages;
  }
}

TEST(CommPulse, NamesTheRankThatOthersWaitFor) {
  const TemporaryDirectory run;
  run_with_pulse(run, 3, [&](Group& world) {
    const auto late = world.split(
        "late",
        [](int) {
          return SplitKey{0, 0};
        },
        "its lane");
    late->barrier("first").wait();
    if (world.rank() == 1) {
      const PulsePages pages = pages_while_waiting(run, "sum", 2);
      const PulseHang hang = find_hang(pages);
      EXPECT_EQ(hang.kind, PulseHang::Kind::kMissing);
      EXPECT_EQ(hang.ranks, std::vector<int>({1}));
      EXPECT_EQ(hang.waiting, std::vector<int>({0, 2}));
      EXPECT_EQ(hang.group, "late");
      EXPECT_EQ(hang.operation.op, "all_reduce");
      EXPECT_EQ(hang.operation.number, 1);
      EXPECT_EQ(hang.operation.bytes, 16);
    }
    std::array<int64_t, 2> values{1, 2};
    add_up(*late, values, "sum");
    EXPECT_EQ(values[1], 6);
  });
  EXPECT_TRUE(read_pulse(run.path()).empty());
}

TEST(CommPulse, NamesTheRankThatAChannelWaitsFor) {
  const TemporaryDirectory run;
  run_with_pulse(run, 2, [&](Group& world) {
    const auto channel = world.channel(0, 1, "stages");
    int64_t value = 7;
    const Tensor data = tensor_over(std::span(&value, 1));
    if (world.rank() == 1) return channel->receive(data, "activations").wait();
    const PulseHang hang = find_hang(pages_while_waiting(run, "activations", 1));
    EXPECT_EQ(hang.kind, PulseHang::Kind::kMissing);
    EXPECT_EQ(hang.ranks, std::vector<int>({0}));
    EXPECT_EQ(hang.operation.number, 0);
    channel->send(data, "activations").wait();
  });
}

TEST(CommPulse, ShowsWhenOperationsWereQueuedStartedAndEnded) {
  const TemporaryDirectory run;
  run_with_pulse(run, 2, [&](Group& world) {
    for (int i = 0; i < 300; ++i) world.barrier("often").wait();
    world.barrier("done").wait();
    if (world.rank() == 0) {
      const PulsePage page = read_pulse(run.path()).at(0);
      EXPECT_EQ(page.operations.size(), size_t{PulseLayout::kNumEntries});
      EXPECT_EQ(page.operations.back().label, "done");
      EXPECT_EQ(page.operations.back().number, 301);
      EXPECT_FALSE(page.awaited());
      for (const PulseOperation& operation : page.operations) {
        EXPECT_LE(operation.queued_ns, operation.started_ns);
        EXPECT_LE(operation.started_ns, operation.ended_ns);
      }
    }
    world.barrier("read").wait();
  });
}

}  // namespace
}  // namespace ashlar::comm
