// Schedules of every size they allow: orders, transfers, slots and times, each against what the
// header says of it.
#include "ashlar/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ashlar/core/function_ref.h"
#include "ashlar/parallel/schedule_simulation.h"
#include "tests/support/errors.h"

namespace ashlar::parallel {
namespace {

using Kind = Action::Kind;

struct ScheduleCase {
  Schedule schedule;
  int stages, chunks;
  int64_t micro_batches;
  std::string name() const {
    constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zero bubble"};
    return fmt::format("{}, {} stages, {} chunks, {} micro-batches", kNames[int(schedule)], stages,
                       chunks, micro_batches);
  }
};

void for_all(function_ref<void(const ScheduleCase&)> check) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int64_t m = 1; m <= 24; ++m) {
      for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1f1b, Schedule::kZeroBubble})
        check({schedule, stages, 1, m});
      for (int chunks = 2; chunks <= 4; ++chunks)
        if (stages > 1 && m % stages == 0) check({Schedule::kInterleaved, stages, chunks, m});
    }
}

Programs order_of(const ScheduleCase& c) {
  return compute_order(c.schedule, c.stages, c.chunks, c.micro_batches);
}

bool computes(Kind kind) {
  return kind <= Kind::kWeights;
}

// Actions of each kind and chunk: 0 .. m - 1, in this order.
TEST(Schedule, EveryActionStandsOnceWithMicroBatchesAscending) {
  for_all([](const ScheduleCase& c) {
    std::vector<Kind> kinds = {Kind::kForward, Kind::kBackward};
    if (c.schedule == Schedule::kZeroBubble)
      kinds = {Kind::kForward, Kind::kInputs, Kind::kWeights};
    for (const auto& program : order_of(c)) {
      std::map<std::pair<Kind, int>, int64_t> next;
      for (const Action& action : program)
        ASSERT_EQ(action.micro_batch, (next[{action.kind, action.chunk}]++)) << c.name();
      ASSERT_EQ(next.size(), kinds.size() * size_t(c.chunks)) << c.name();
      for (const Kind kind : kinds)
        for (int chunk = 0; chunk < c.chunks; ++chunk)
          ASSERT_EQ((next[{kind, chunk}]), c.micro_batches) << c.name();
    }
  });
}

using Moment = std::tuple<Kind, int, int>;  // kind, virtual stage, micro-batch

// By the times of a run: what an action reads was there when it began, and a stage does one thing
// at a time.
void expect_dependencies(const ScheduleCase& c, const Programs& programs, const Simulation& run,
                         double transfer_s) {
  ASSERT_EQ(run.problem, "") << c.name();
  std::map<Moment, Interval> times;
  for (int stage = 0; stage < c.stages; ++stage) {
    double free_s = 0;
    for (size_t i = 0; i < programs[size_t(stage)].size(); ++i) {
      const Action& action = programs[size_t(stage)][i];
      if (!computes(action.kind)) continue;
      const Interval time = run.times[size_t(stage)][i];
      ASSERT_GE(time.begin_s, free_s) << c.name();
      free_s = time.end_s;
      times[{action.kind, action.chunk * c.stages + stage, action.micro_batch}] = time;
    }
  }
  const bool split = c.schedule == Schedule::kZeroBubble;
  const Kind backward = split ? Kind::kInputs : Kind::kBackward;
  const int last = c.stages * c.chunks - 1;
  for (int n = 0; n <= last; ++n)
    for (int i = 0; i < c.micro_batches; ++i) {
      const double forward_s = times.at({Kind::kForward, n, i}).begin_s,
                   backward_s = times.at({backward, n, i}).begin_s;
      if (n > 0) {
        ASSERT_GE(forward_s, times.at({Kind::kForward, n - 1, i}).end_s + transfer_s) << c.name();
      }
      if (n < last) {
        ASSERT_GE(backward_s, times.at({backward, n + 1, i}).end_s + transfer_s) << c.name();
      }
      ASSERT_GE(backward_s, times.at({Kind::kForward, n, i}).end_s) << c.name();
      if (split) {
        ASSERT_GE(times.at({Kind::kWeights, n, i}).begin_s, times.at({Kind::kInputs, n, i}).end_s);
      }
    }
}

TEST(Schedule, ActionsRunWhenWhatTheyReadIsThere) {
  for_all([](const ScheduleCase& c) {
    const Programs order = order_of(c), lowered = with_transfers(order);
    expect_dependencies(c, order, simulate(order, {1, 2, 3, 0}), 0);
    expect_dependencies(c, lowered, simulate(lowered, {1, 2, 3, 0.5}), c.stages > 1 ? 0.5 : 0);
  });
}

TEST(Schedule, BubblesAreTheFormulas) {
  for_all([](const ScheduleCase& c) {
    const ActionTimes costs;
    const Simulation run = simulate(order_of(c), costs);
    const double busy_s = 3.0 * double(c.micro_batches) * c.chunks;
    const double bubble = bubble_s(c.schedule, c.stages, c.micro_batches, costs);
    ASSERT_NEAR(run.end_s - busy_s, bubble, 1e-9) << c.name();
    ASSERT_NEAR(run.bubble_share, bubble / (bubble + busy_s), 1e-9) << c.name();
  });
  const ActionTimes uneven{2, 3, 4};
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1f1b})
    EXPECT_NEAR(simulate(compute_order(schedule, 4, 1, 8), uneven).end_s,
                8 * 9.0 + bubble_s(schedule, 4, 8, uneven), 1e-9);
  // A third of 1F1B's at the same memory; half of it with two chunks.
  EXPECT_EQ(bubble_s(Schedule::kZeroBubble, 4, 8, {}), 3);
  EXPECT_EQ(bubble_s(Schedule::k1f1b, 4, 8, {}), 9);
  EXPECT_EQ(bubble_s(Schedule::kInterleaved, 4, 8, {0.5, 0.5, 0.5}), 4.5);
}

int64_t slots_by_formula(const ScheduleCase& c, int stage) {
  const int64_t m = c.micro_batches, p = c.stages, v = c.chunks;
  switch (c.schedule) {
    case Schedule::kGpipe:
      return m;
    case Schedule::k1f1b:
      return std::min(m, p - stage);
    case Schedule::kInterleaved:
      return std::min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1);
    case Schedule::kZeroBubble:
      return std::min(m, p);
  }
  return -1;
}

// No two pairs in a slot at once, and as many slots as are ever taken at once.
void expect_slots(const std::vector<Action>& program, const std::string& where) {
  const PairSlots slots = slots_of(program);
  ASSERT_EQ(slots.of.size(), program.size()) << where;
  std::map<std::pair<int, int>, std::pair<size_t, size_t>> lives;
  std::map<std::pair<int, int>, int> slot_of;
  for (size_t i = 0; i < program.size(); ++i) {
    const std::pair<int, int> pair{program[i].chunk, program[i].micro_batch};
    const auto [life, is_new] = lives.try_emplace(pair, i, i);
    life->second.second = i;
    if (is_new) slot_of[pair] = slots.of[i];
    ASSERT_EQ(slots.of[i], slot_of[pair]) << where;
  }
  int most = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    std::set<int> taken;
    int alive = 0;
    for (const auto& [pair, life] : lives)
      if (life.first <= i && i <= life.second) {
        ++alive;
        taken.insert(slot_of[pair]);
      }
    ASSERT_EQ(int(taken.size()), alive) << where;
    most = std::max(most, alive);
  }
  ASSERT_EQ(slots.count, most) << where;
}

TEST(Schedule, SlotsAreTheFormulas) {
  for_all([](const ScheduleCase& c) {
    const Programs order = order_of(c), lowered = with_transfers(order);
    for (int stage = 0; stage < c.stages; ++stage) {
      const int64_t expected = slots_by_formula(c, stage);
      ASSERT_EQ(num_slots(order[size_t(stage)]), expected) << c.name();
      // One more where a receive is posted ahead.
      const bool receives = stage > 0 || c.chunks > 1;
      const int64_t pairs = c.micro_batches * c.chunks;
      ASSERT_EQ(num_slots(lowered[size_t(stage)]), std::min(pairs, expected + receives))
          << c.name();
      if (c.stages <= 4 && c.micro_batches <= 8) expect_slots(lowered[size_t(stage)], c.name());
    }
  });
}

// Sends of a stage that another receives, and the reverse; at most two receives wait to be read.
TEST(Schedule, TransfersAreThoseThatPairsNeed) {
  for_all([](const ScheduleCase& c) {
    const Programs order = order_of(c), lowered = with_transfers(order);
    const int last = c.stages * c.chunks - 1;
    for (int stage = 0; stage < c.stages; ++stage) {
      std::vector<Action> computing;
      std::map<Moment, int> count;
      std::map<Kind, int> waiting;  // posted and not read, by kind of receive
      std::set<std::pair<int, int>> forwarded;
      for (const Action& action : lowered[size_t(stage)]) {
        const int n = action.chunk * c.stages + stage;
        ++count[{action.kind, n, action.micro_batch}];
        if (computes(action.kind)) computing.push_back(action);
        const std::pair<int, int> pair{action.chunk, action.micro_batch};
        const bool gradient = action.kind == Kind::kBackward || action.kind == Kind::kInputs;
        if (action.kind == Kind::kForward) {
          forwarded.insert(pair);
          waiting[Kind::kReceiveForward] -= c.stages > 1 && n > 0;
        }
        if (gradient) waiting[Kind::kReceiveBackward] -= c.stages > 1 && n < last;
        if (action.kind == Kind::kReceiveForward || action.kind == Kind::kReceiveBackward) {
          ASSERT_LE(++waiting[action.kind], 2) << c.name();
        }
        if (action.kind == Kind::kReceiveBackward) {
          ASSERT_TRUE(forwarded.contains(pair)) << c.name();
        }
        for (const auto& [kind, number] : waiting) ASSERT_GE(number, 0) << c.name();
      }
      ASSERT_EQ(computing, order[size_t(stage)]) << c.name();
      for (int chunk = 0; chunk < c.chunks; ++chunk)
        for (int i = 0; i < c.micro_batches; ++i) {
          const int n = chunk * c.stages + stage, alone = c.stages == 1;
          ASSERT_EQ((count[{Kind::kReceiveForward, n, i}]), !alone && n > 0) << c.name();
          ASSERT_EQ((count[{Kind::kSendBackward, n, i}]), !alone && n > 0) << c.name();
          ASSERT_EQ((count[{Kind::kSendForward, n, i}]), !alone && n < last) << c.name();
          ASSERT_EQ((count[{Kind::kReceiveBackward, n, i}]), !alone && n < last) << c.name();
        }
    }
  });
}

TEST(Schedule, ProgramsEndThoughEverySendWaits) {
  for_all([](const ScheduleCase& c) {
    const Programs lowered = with_transfers(order_of(c));
    for (const double transfer_s : {0.0, 0.25, 5.0})
      for (const Sends sends : {Sends::kPost, Sends::kWait})
        ASSERT_EQ(simulate(lowered, {1, 1, 1, transfer_s}, sends).problem, "") << c.name();
  });
}

// Faults that the run must find: two sends of a channel in the wrong order, a missing receive, and
// 1F1B whose stages receive only right before they read.
TEST(Schedule, ProgramsThatCannotEndAreFound) {
  const Programs good = with_transfers(compute_order(Schedule::k1f1b, 3, 1, 6));
  const auto find = [](std::vector<Action>& program, Kind kind, int micro_batch) {
    return std::find(program.begin(), program.end(), Action{kind, 0, micro_batch});
  };
  Programs swapped = good;
  std::iter_swap(find(swapped[1], Kind::kSendForward, 2), find(swapped[1], Kind::kSendForward, 3));
  EXPECT_EQ(simulate(swapped).problem,
            "stage 1: send_forward of chunk 0, micro-batch 3 meets stage 2: receive_forward of "
            "chunk 0, micro-batch 2");
  Programs missing = good;
  missing[1].erase(find(missing[1], Kind::kReceiveBackward, 5));
  EXPECT_EQ(simulate(missing).problem,
            "stage 0 waits in backward of chunk 0, micro-batch 5; "
            "stage 1 waits in backward of chunk 0, micro-batch 5");
  Programs late = good;
  for (auto& program : late) {
    const std::vector<Action> before = std::exchange(program, {});
    for (const Action& action : before) {
      if (action.kind == Kind::kReceiveForward || action.kind == Kind::kReceiveBackward) continue;
      const Kind receive =
          action.kind == Kind::kForward ? Kind::kReceiveForward : Kind::kReceiveBackward;
      const Action reads{receive, action.chunk, action.micro_batch};
      if (computes(action.kind) && std::count(before.begin(), before.end(), reads) > 0)
        program.push_back(reads);
      program.push_back(action);
    }
  }
  EXPECT_EQ(simulate(late, {}, Sends::kPost).problem, "");
  EXPECT_NE(simulate(late, {}, Sends::kWait).problem, "");
}

// The sum of a stage's own sends when transfers take a fifth of a forward: receives that are posted
// ahead hide them in the steady state.
TEST(Schedule, ReceivesAheadHideTransfers) {
  const ActionTimes costs{1, 1, 1, 0.2};
  const double end_s =
      simulate(with_transfers(compute_order(Schedule::k1f1b, 8, 1, 32)), costs).end_s;
  const double compute_s = 3 * (32 + 7.0);
  // Filling and draining the pipeline shows 2 (p - 1) transfers at least.
  EXPECT_GE(end_s, compute_s + 14 * 0.2 - 1e-9);
  EXPECT_LE(end_s, 1.13 * compute_s);
}

TEST(Schedule, RefusesWhatItDoesNotAllow) {
  using ashlar::testing_support::message_of;
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { compute_order(Schedule::k1f1b, 4, 2, 8); }),
            "2 virtual stages on each stage, but only the schedule interleaved runs more than 1; "
            "choose it, or 1");
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { compute_order(Schedule::kInterleaved, 4, 2, 10); }),
            "the schedule is interleaved with 10 micro-batches on 4 stages; it takes a multiple of "
            "the stages: choose 8 or 12");
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { compute_order(Schedule::kInterleaved, 4, 2, 3); }),
            "the schedule is interleaved with 3 micro-batches on 4 stages; it takes a multiple of "
            "the stages: choose 4");
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { compute_order(Schedule::kInterleaved, 4, 1, 4); }),
            "the schedule is interleaved, but there are 1 virtual stages on each of 4 stages; it "
            "takes 2 or more of each: choose 1f1b");
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { compute_order(Schedule::kGpipe, 0, 1, 4); }),
            "a pipeline of 0 stages with 1 virtual stages each and 4 micro-batches; expected 1 or "
            "more of each");
}

}  // namespace
}  // namespace ashlar::parallel
