// Counters against closed formulas, as integers; recorded worlds against real ones.
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/comm/checks.h"
#include "tests/support/malloc_count.h"

namespace ashlar::comm {
namespace {

using namespace testing_support;
using ashlar::testing_support::counts_mallocs;
using ashlar::testing_support::num_mallocs;

constexpr int64_t kWidth = 4;

struct Bytes {
  int64_t sent, received;
};

// The table of group.h, N elements of kWidth bytes.
Bytes formula(Op op, int64_t N, int64_t r, int64_t n, int64_t root) {
  const auto chunk = [](int64_t elements, int64_t i, int64_t parts) {
    return (elements * (i + 1) / parts - elements * i / parts) * kWidth;
  };
  const int64_t S = N * kWidth, c = chunk(N, r, n);
  if (n == 1) return {0, 0};
  switch (op) {
    case Op::kReduceScatter:
      return {S - c, (n - 1) * c};
    case Op::kAllGather:
      return {(n - 1) * c, S - c};
    case Op::kAllReduce:
      return {S + (n - 2) * c, S + (n - 2) * c};
    case Op::kReduce:
      return r == root ? Bytes{S - c, (n - 1) * c + S - c} : Bytes{S, (n - 1) * c};
    case Op::kBroadcast: {
      const int64_t d = chunk(N, r < root ? r : r - 1, n - 1);
      return r == root ? Bytes{S, 0} : Bytes{(n - 2) * d, S};
    }
    case Op::kAllToAll:  // N / n elements for each
      return {(n - 1) * (N / n) * kWidth, (n - 1) * (N / n) * kWidth};
    case Op::kSendReceive:  // N to the next
      return {S, S};
    case Op::kBarrier:
      return {0, 0};
  }
  return {-1, -1};
}

// One of each, twice over; `data` has room for 2 N elements (or is null).
void run_all(Group& group, int64_t N, int root, Device device, float* data) {
  const int n = group.size(), me = group.rank();
  const auto tensor = [&](int64_t length) {
    return Tensor{reinterpret_cast<std::byte*>(data), DType::kF32, device, Shape{length}};
  };
  const Rows rows = even_rows(N, me, n);
  const Tensor whole = tensor(N);
  const std::string label = fmt::format("N{}", N);
  for (int repeat = 0; repeat < 2; ++repeat) {
    group.all_reduce(whole, whole, label).wait();
    group.reduce_scatter(whole, whole.slice(rows.begin, rows.end), label).wait();
    group.all_gather(whole.slice(rows.begin, rows.end), whole, label).wait();
    group.broadcast(whole, root, label).wait();
    group.reduce(whole, whole, root, label).wait();
    group.all_to_all(tensor(N / n * n), tensor(N / n * n), label).wait();
    Tensor other = whole;
    if (other.data) other.data += whole.bytes();
    const Transfer to{(me + 1) % n, whole}, from{(me + n - 1) % n, other};
    group.send_receive({&to, 1}, {&from, 1}, label).wait();
    group.barrier(label).wait();
  }
}

const Options kOptions{30.0, 1 << 12};
constexpr int64_t kLengths[] = {0, 1, 5, 1000, 100003};

void expect_formulas(const Group& group, int root, const std::vector<TrafficRow>& rows) {
  ASSERT_EQ(rows.size(), size_t(kNumOps) * std::size(kLengths));
  for (const TrafficRow& row : rows) {
    const int64_t N = std::stoll(row.label.substr(1));
    const Bytes once = formula(row.op, N, group.rank(), group.size(), root);
    const auto where =
        fmt::format("{} {} rank {} of {}", name_of(row.op), row.label, group.rank(), group.size());
    EXPECT_EQ(row.launches, 2) << where;
    EXPECT_EQ(row.sent_bytes, 2 * once.sent) << where;
    EXPECT_EQ(row.received_bytes, 2 * once.received) << where;
  }
}

class TrafficWorlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Traffic, TrafficWorlds, testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(TrafficWorlds, RealAndRecordedCountersAreTheFormulas) {
  const int n = GetParam(), root = n / 2;
  std::vector<std::vector<TrafficRow>> real(static_cast<size_t>(n));
  Allocator allocator(Device::kCpu);
  run_ranks(n, kOptions, allocator, [&](Group& world) {
    for (const int64_t N : kLengths) {
      std::vector<float> data(size_t(2 * N) + 1);
      run_all(world, N, root, Device::kCpu, data.data());
    }
    real[size_t(world.rank())] = world.traffic();
  });
  for (int rank = 0; rank < n; ++rank) {
    Allocator meta(Device::kMeta);
    RecordingWorld recording(rank, n, kOptions, meta);
    for (const int64_t N : kLengths) run_all(recording.group(), N, root, Device::kMeta, nullptr);
    expect_formulas(recording.group(), root, recording.group().traffic());
    EXPECT_EQ(recording.group().traffic(), real[size_t(rank)]);
    EXPECT_EQ(meta.counts().tags[size_t(Tag::kCommunication)].peak_bytes,
              n == 1 ? 0 : kOptions.staging_bytes);
  }
}

// Where n divides N: (n-1)/n S for one way, twice that for all_reduce.
TEST(Traffic, EvenLengthsCostWhatARingCosts) {
  Allocator meta(Device::kMeta);
  RecordingWorld recording(77, 1024, Options{}, meta);
  Group& group = recording.group();
  const int64_t N = int64_t{1024} * 1000, S = N * kWidth;
  run_all(group, N, 5, Device::kMeta, nullptr);
  for (const TrafficRow& row : group.traffic()) {
    if (row.op == Op::kAllReduce) {
      EXPECT_EQ(row.sent_bytes, 2 * (2 * 1023 * S / 1024));
    }
    if (row.op == Op::kAllGather || row.op == Op::kReduceScatter) {
      EXPECT_EQ(row.sent_bytes, 2 * (1023 * S / 1024));
      EXPECT_EQ(row.received_bytes, row.sent_bytes);
    }
  }
}

TEST(Traffic, ARecordingCountsWhatGoesToOthersAndComesFromThem) {
  Allocator meta(Device::kMeta);
  RecordingWorld recording(5, 12, Options{}, meta);
  Group& world = recording.group();
  const auto row = world.split("row", [](int rank) { return SplitKey{rank / 4, 0}; });
  EXPECT_EQ(row->rank(), 1);
  const Tensor whole{nullptr, DType::kBF16, Device::kMeta, {10, 6}};
  const Tensor part{nullptr, DType::kBF16, Device::kMeta, {15}};
  const int64_t sends[] = {0, 7, 3, 0}, receives[] = {5, 7, 8, 40};
  row->all_to_all(part.slice(0, 10), whole, "tokens", sends, receives).wait();
  const Transfer to{2, part}, from{0, whole};
  row->send_receive({&to, 1}, {&from, 1}, "halo").wait();
  const std::vector<TrafficRow> rows = row->traffic();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0], (TrafficRow{Op::kAllToAll, "tokens", 1, 3 * 2, (5 + 8 + 40) * 2}));
  EXPECT_EQ(rows[1], (TrafficRow{Op::kSendReceive, "halo", 1, 15 * 2, 60 * 2}));
}

TEST(Traffic, SteadyOperationsAllocateNothing) {
  if (!counts_mallocs()) GTEST_SKIP() << "sanitizers bring an allocator of their own";
  Allocator allocator(Device::kCpu);
  int64_t before = 0, after = -1;
  run_ranks(4, kOptions, allocator, [&](Group& world) {
    std::vector<float> data(100003);
    const Tensor whole = tensor_of(data);
    const Rows rows = even_rows(100003, world.rank(), 4);
    const int64_t counts[] = {1, 2, 0, 100000};
    const int64_t offset[] = {0, 1, 3, 3};
    const Tensor chunk =
        whole.slice(offset[world.rank()], offset[world.rank()] + counts[world.rank()]);
    const Transfer to{(world.rank() + 1) % 4, whole.slice(0, 100)};
    const Transfer from{(world.rank() + 3) % 4, whole.slice(500, 600)};
    const auto steps = [&](int num_steps) {
      for (int step = 0; step < num_steps; ++step) {
        Work a = world.all_reduce(whole, whole, "a label longer than any short string");
        Work b = world.reduce_scatter(whole, whole.slice(rows.begin, rows.end), "b");
        Work c = world.all_gather(chunk, whole, "c", counts);
        Work d = world.send_receive({&to, 1}, {&from, 1}, "d");
        Work e = world.all_to_all(whole.slice(0, 4000), whole.slice(0, 4000), "e");
        Work f = world.broadcast(whole, 1, "f");
        Work g = world.reduce(whole, whole, 2, "g");
        for (Work* work : {&a, &b, &c, &d, &e, &f, &g}) work->wait();
      }
    };
    steps(1);
    world.barrier("warm").wait();
    world.barrier("warm").wait();
    if (world.rank() == 0) before = num_mallocs();
    world.barrier("warm").wait();
    steps(20);
    world.barrier("warm").wait();
    if (world.rank() == 0) after = num_mallocs();
    world.barrier("warm").wait();
  });
  EXPECT_EQ(after - before, 0);
}

}  // namespace
}  // namespace ashlar::comm
