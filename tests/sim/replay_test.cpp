// Replays of small programs whose times are known by hand.
#include "ashlar/sim/replay.h"

#include <gtest/gtest.h>

#include <array>

#include "ashlar/sim/program_builder.h"
#include "tests/sim/simple_costs.h"

namespace ashlar::sim {
namespace {

using machine::CollectiveOp;
using testing_support::SimpleCosts;
using SpanKind = ReplaySpan::Kind;

// Posts on the lane "world" of a group of all ranks, each waited for by its ticket.
class ReplayPrograms {
 public:
  explicit ReplayPrograms(int num_ranks) : builder_(num_ranks), tickets_(size_t(num_ranks)) {
    for (int r = 0; r < num_ranks; ++r) all_.push_back(r);
  }
  void kernel(int rank, const char* op) { builder_.kernel(rank, {.op = op}); }
  int64_t post(int rank, const char* label, std::vector<int> ranks = {},
               CollectiveOp op = CollectiveOp::kAllReduce, int64_t bytes = 64,
               const char* lane = "world") {
    if (ranks.empty()) ranks = all_;
    const int64_t ticket = ++tickets_[size_t(rank)];
    builder_.post(rank,
                  {.op = op,
                   .lane = int16_t(builder_.lane(rank, lane)),
                   .label = builder_.text(label),
                   .group = builder_.group(lane, ranks),
                   .number = numbers_[{rank, lane, ranks}]++,
                   .bytes = bytes},
                  ticket);
    return ticket;
  }
  void wait(int rank, int64_t ticket, const char* lane = "world") {
    builder_.wait(rank, builder_.lane(rank, lane), ticket);
  }
  RankPrograms finish() {
    for (const int r : all_) builder_.end_step(r);
    return builder_.finish();
  }
  ProgramBuilder& builder() { return builder_; }

 private:
  ProgramBuilder builder_;
  std::vector<int> all_;
  std::vector<int64_t> tickets_;
  std::map<std::tuple<int, std::string, std::vector<int>>, int64_t> numbers_;
};

TEST(Replay, AWaitEndsWhenTheLastRankHasComeAndTheDataHasMoved) {
  ReplayPrograms b(2);
  b.kernel(0, "short");
  b.kernel(1, "long");
  for (const int r : {0, 1}) {
    const int64_t sum = b.post(r, "sum");
    b.kernel(r, "short");
    b.wait(r, sum);
  }
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.kernels = {{"short", 1}, {"long", 5}};
  costs.operations = {{"sum", 3}};
  const Replayed replayed = replay(programs, costs, {.keep_spans = true});
  ASSERT_EQ(replayed.problem, "");
  EXPECT_EQ(replayed.step_s, std::vector<double>{8});
  const RankShare &first = replayed.ranks[0], &second = replayed.ranks[1];
  EXPECT_EQ(first.compute_s, 2);
  EXPECT_EQ(first.waiting_s, 3);  // from 2 to 5
  EXPECT_EQ(first.exposed_s, 3);
  EXPECT_EQ(second.compute_s, 6);
  EXPECT_EQ(second.waiting_s, 0);
  EXPECT_EQ(second.exposed_s, 2);
  EXPECT_EQ(second.between_s, 0);
  const ReplaySpan& operation = replayed.spans[0].back().kind == SpanKind::kOperation
                                    ? replayed.spans[0].back()
                                    : replayed.spans[0][replayed.spans[0].size() - 2];
  EXPECT_EQ(operation.begin_s, 1);
  EXPECT_EQ(operation.met_s, 5);
  EXPECT_EQ(operation.end_s, 8);
}

TEST(Replay, OperationsOfALaneRunOneAfterTheOtherAndLanesAtOnce) {
  ReplayPrograms b(2);
  for (const int r : {0, 1}) {
    b.post(r, "a");
    const int64_t last = b.post(r, "b");
    b.post(r, "c", {}, CollectiveOp::kAllGather, 64, "keys");
    b.wait(r, last);
  }
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.operations = {{"a", 2}, {"b", 3}, {"c", 4}};
  const Replayed replayed = replay(programs, costs, {.keep_spans = true});
  ASSERT_EQ(replayed.problem, "");
  EXPECT_EQ(replayed.step_s[0], 5);
  for (const ReplaySpan& span : replayed.spans[0])
    if (span.kind == SpanKind::kOperation && span.lane == 1) {
      EXPECT_EQ(span.begin_s, 0);
      EXPECT_EQ(span.end_s, 4);
    }
}

TEST(Replay, CoresAreShared) {
  ReplayPrograms b(2);
  for (const int r : {0, 1}) b.kernel(r, "work");
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.kernels = {{"work", 3}};
  costs.num_cores = 2;
  EXPECT_EQ(replay(programs, costs).step_s[0], 3);
  SimpleCosts one_core(programs);
  one_core.kernels = costs.kernels;
  one_core.num_cores = 1;
  EXPECT_EQ(replay(programs, one_core).step_s[0], 6);
}

// On full cores copies of lanes hide nothing; on cores of their own they hide behind kernels.
TEST(Replay, LanesTakeProcessorTimeFromKernels) {
  ReplayPrograms b(2);
  for (const int r : {0, 1}) {
    const int64_t sum = b.post(r, "sum");
    b.kernel(r, "work");
    b.wait(r, sum);
  }
  const RankPrograms programs = b.finish();
  const auto step_s = [&](int num_cores) {
    SimpleCosts costs(programs);
    costs.kernels = {{"work", 4}};
    costs.operations = {{"sum", 2}};
    costs.num_cores = num_cores;
    costs.on_cores = true;
    return replay(programs, costs).step_s[0];
  };
  EXPECT_DOUBLE_EQ(step_s(2), 6);
  EXPECT_DOUBLE_EQ(step_s(4), 4);
}

TEST(Replay, APostWaitsForRoomOnAFullLane) {
  ReplayPrograms b(2);
  for (int i = 0; i < kQueueOfALane + 1; ++i) b.post(0, "sum");
  b.kernel(0, "work");
  b.kernel(1, "work");
  for (int i = 0; i < kQueueOfALane + 1; ++i) b.post(1, "sum");
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.kernels = {{"work", 10}};
  costs.operations = {{"sum", 1}};
  const Replayed replayed = replay(programs, costs, {.keep_spans = true});
  ASSERT_EQ(replayed.problem, "");
  EXPECT_EQ(replayed.ranks[0].between_s, 11);  // until the first operation has ended, at 11
  EXPECT_EQ(replayed.ranks[0].step_s, 21);
  bool blocked = false;
  for (const ReplaySpan& span : replayed.spans[0])
    blocked |= span.kind == SpanKind::kPost && span.begin_s == 0 && span.end_s == 11;
  EXPECT_TRUE(blocked);
}

// A dry run has one step; waits for operations of the step before find them in the repeat before.
TEST(Replay, RepeatsOverlapAsStepsDo) {
  ReplayPrograms b(2);
  for (const int r : {0, 1}) {
    b.wait(r, 0);  // the gather that the step before posted
    b.kernel(r, "work");
    b.post(r, "weights");  // ticket 1
  }
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.kernels = {{"work", 2}};
  costs.operations = {{"weights", 3}};
  const Replayed replayed = replay(programs, costs, {.repeats = 3});
  ASSERT_EQ(replayed.problem, "");
  EXPECT_EQ(replayed.step_s, (std::vector<double>{2, 5, 5}));
  EXPECT_EQ(replayed.ranks[0].exposed_s, 3);
}

TEST(Replay, ReadingTheNextBatchStallsTheStep) {
  ReplayPrograms b(2);
  for (const int r : {0, 1}) b.kernel(r, "work");
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.kernels = {{"work", 2}};
  costs.bytes_to_read = 10;
  costs.disk_rate = 4;  // of both ranks together
  const Replayed replayed = replay(programs, costs, {.repeats = 2});
  EXPECT_EQ(replayed.step_s, (std::vector<double>{5, 5}));
  EXPECT_EQ(replayed.ranks[1].between_s, 3);
}

TEST(Replay, TwoReplaysAreEqualBitForBit) {
  ReplayPrograms b(3);
  for (const int r : {0, 1, 2})
    for (int i = 0; i < 20; ++i) {
      const int64_t sum = b.post(r, "sum");
      b.kernel(r, r == i % 3 ? "long" : "short");
      const int64_t pair = r < 2 ? b.post(r, "pair", {0, 1}) : 0;
      b.wait(r, sum);
      if (r < 2) b.wait(r, pair);
    }
  const RankPrograms programs = b.finish();
  const auto once = [&] {
    SimpleCosts costs(programs);
    costs.kernels = {{"short", 0.1}, {"long", 0.17}};
    costs.operations = {{"sum", 0.03}, {"pair", 0.07}};
    costs.num_cores = 2;
    costs.on_cores = true;
    return replay(programs, costs, {.repeats = 2, .keep_spans = true});
  };
  const Replayed first = once(), second = once();
  ASSERT_EQ(first.problem, "");
  EXPECT_EQ(first.step_s, second.step_s);
  for (size_t r = 0; r < 3; ++r) {
    ASSERT_EQ(first.spans[r].size(), second.spans[r].size());
    for (size_t i = 0; i < first.spans[r].size(); ++i) {
      EXPECT_EQ(first.spans[r][i].begin_s, second.spans[r][i].begin_s);
      EXPECT_EQ(first.spans[r][i].end_s, second.spans[r][i].end_s);
      EXPECT_EQ(first.spans[r][i].index, second.spans[r][i].index);
    }
  }
}

TEST(Replay, ALockUpNamesRanksAndOperations) {
  ReplayPrograms b(2);
  const int64_t x = b.post(0, "first", {0, 1}, CollectiveOp::kAllReduce, 64, "sums");
  b.wait(0, x, "sums");
  b.post(0, "second", {0, 1}, CollectiveOp::kAllGather, 64, "keys");
  const int64_t y = b.post(1, "second", {0, 1}, CollectiveOp::kAllGather, 64, "keys");
  b.wait(1, y, "keys");
  b.post(1, "first", {0, 1}, CollectiveOp::kAllReduce, 64, "sums");
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.operations = {{"first", 1}, {"second", 1}};
  EXPECT_EQ(replay(programs, costs).problem,
            "rank 0 waits for all_reduce 'first' (number 0 of sums); its lane sums is in "
            "all_reduce 'first' (number 0 of sums), where it misses rank 1\n"
            "rank 1 waits for all_gather 'second' (number 0 of keys); its lane keys is in "
            "all_gather 'second' (number 0 of keys), where it misses rank 0");
}

TEST(Replay, RanksThatCallDifferentOperationsAreNamed) {
  ReplayPrograms b(2);
  b.post(0, "sum");
  b.post(1, "sum", {}, CollectiveOp::kAllReduce, 128);
  const RankPrograms programs = b.finish();
  SimpleCosts costs(programs);
  costs.operations = {{"sum", 1}};
  EXPECT_EQ(replay(programs, costs).problem,
            "rank 0 calls all_reduce 'sum' (number 0 of world) of 64 bytes; rank 1: all_reduce "
            "'sum' (number 0 of world) of 128 bytes");
}

// Four ranks in two groups: a slow rank 3 delays its partner at once, the others only where they
// meet it.
TEST(Replay, ASlowRankMovesExactlyWhatWaitsForIt) {
  ReplayPrograms b(4);
  for (int r = 0; r < 4; ++r) {
    const std::vector<int> pair = r < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    b.kernel(r, "work");
    b.wait(r, b.post(r, "pair", pair));
    b.kernel(r, "work");
    b.wait(r, b.post(r, "all"));
  }
  const RankPrograms programs = b.finish();
  const auto run = [&](double factor) {
    SimpleCosts costs(programs);
    costs.kernels = {{"work", 10}};
    costs.operations = {{"pair", 1}, {"all", 1}};
    costs.slow = {{3, factor}};
    return replay(programs, costs, {.keep_spans = true});
  };
  const Replayed even = run(1), slow = run(1.2);
  const auto kernels = [](const Replayed& replayed, size_t rank) {
    std::vector<double> ends;
    for (const ReplaySpan& span : replayed.spans[rank])
      if (span.kind == SpanKind::kKernel) ends.push_back(span.end_s);
    return ends;
  };
  for (const size_t r : {0u, 1u}) EXPECT_EQ(kernels(slow, r), kernels(even, r));
  EXPECT_EQ(kernels(slow, 2), (std::vector<double>{10, 23}));  // 12 + 1 + 10
  EXPECT_EQ(kernels(slow, 3), (std::vector<double>{12, 25}));
  EXPECT_EQ(even.step_s[0], 22);
  EXPECT_EQ(slow.step_s[0], 26);
  EXPECT_EQ(slow.ranks[0].waiting_s, 4);  // from 21 to 25
  EXPECT_EQ(slow.ranks[3].waiting_s, 0);
}

}  // namespace
}  // namespace ashlar::sim
