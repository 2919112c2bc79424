// Rounds of operations: engines, recording worlds and the function rounds_of agree.
#include "ashlar/comm/rounds_of.h"

#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/checks.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;

const Options kThinStaging{30.0, 1 << 10};

// Runs operations on N elements; of the uneven ones rank 0 has all elements.
std::vector<std::pair<Op, int64_t>> rounds_in_trace(Group& world, int64_t N, float* data) {
  const int n = world.size(), root = n - 1;
  const Device device = data ? Device::kCpu : Device::kMeta;
  const auto tensor = [&](int64_t begin, int64_t length) {
    return Tensor{data ? reinterpret_cast<std::byte*>(data + begin) : nullptr, DType::kF32, device,
                  Shape{length}};
  };
  const Tensor whole = tensor(0, N);
  const Rows rows = even_rows(N, world.rank(), n);
  std::vector<int64_t> uneven(size_t(n), 0);
  uneven[0] = N;
  const Tensor own = tensor(world.rank() == 0 ? 0 : N, uneven[size_t(world.rank())]);
  world.barrier("begin").wait();
  world.trace().start(TraceRoom{100, 100, 100, 0});
  world.all_reduce(whole, whole, "x").wait();
  world.reduce_scatter(whole, tensor(rows.begin, rows.end - rows.begin), "x").wait();
  world.reduce_scatter(whole, own, "uneven", uneven).wait();
  world.all_gather(own, whole, "uneven", uneven).wait();
  world.broadcast(whole, root, "x").wait();
  world.reduce(whole, whole, root, "x").wait();
  world.barrier("x").wait();
  world.barrier("x").wait();  // the operations before it have ended
  world.trace().stop();
  std::vector<std::pair<Op, int64_t>> rounds;
  std::map<int64_t, Op> posts;
  const Trace& trace = world.trace();
  for (const TraceEvent& e : trace.events())
    if (e.kind == TraceEvent::Kind::kPost) posts[e.ticket] = op_of(trace.text(e.name));
  for (const TraceEvent& e : trace.lane_events(0))
    if (e.kind == TraceEvent::Kind::kEnded && rounds.size() < 7)
      rounds.emplace_back(posts.at(e.ticket), e.count);
  return rounds;
}

TEST(RoundsOf, EnginesAndRecordedWorldsTakeAsMany) {
  for (const int n : {2, 3, 4})
    for (const int64_t N : {0, 1, 1000, 10007}) {
      SCOPED_TRACE(fmt::format("{} elements on {} ranks", N, n));
      const auto rounds = [&](Op op, int64_t bytes) {
        return std::pair(op, rounds_of(op, bytes, n, kThinStaging.staging_bytes));
      };
      const int64_t chunk = longest_chunk_bytes(N, n, DType::kF32);
      const std::vector<std::pair<Op, int64_t>> want = {rounds(Op::kAllReduce, chunk),
                                                        rounds(Op::kReduceScatter, chunk),
                                                        rounds(Op::kReduceScatter, N * 4),
                                                        rounds(Op::kAllGather, N * 4),
                                                        rounds(Op::kBroadcast, chunk),
                                                        rounds(Op::kReduce, chunk),
                                                        rounds(Op::kBarrier, 0)};
      Allocator allocator(Device::kCpu), meta(Device::kMeta);
      run_ranks(n, kThinStaging, allocator, [&](Group& world) {
        std::vector<float> data(size_t(N + 1));
        EXPECT_EQ(rounds_in_trace(world, N, data.data()), want);
      });
      for (int rank = 0; rank < n; ++rank) {
        RecordingWorld recorded(rank, n, kThinStaging, meta);
        EXPECT_EQ(rounds_in_trace(recorded.group(), N, nullptr), want);
      }
    }
  EXPECT_EQ(rounds_of(Op::kAllReduce, 1 << 20, 4, 1 << 20), 5);  // parts of 2^18 bytes
  EXPECT_EQ(rounds_of(Op::kReduce, (1 << 18) + 1, 4, 1 << 20), 4);
  EXPECT_EQ(rounds_of(Op::kAllGather, 1 << 30, 4, 1 << 20), 1);
}

}  // namespace
}  // namespace ashlar::comm
