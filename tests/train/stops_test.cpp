// A step that is left undone: all ranks leave it at the same micro-batch, and weights, optimizer
// and balancing are, bit for bit, those of the step before.
#include "ashlar/train/stops.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>

#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

struct StoppedLayout {
  std::string name;
  int num_ranks;
  Overrides overrides;
};

void PrintTo(const StoppedLayout& layout, std::ostream* out) {
  *out << layout.name;
}

class LeftUndone : public testing::TestWithParam<StoppedLayout> {};

// This rank's part of weights, optimizer and balancing.
std::vector<std::byte> state_of(const Trainer& trainer) {
  std::vector<Piece> pieces = trainer.model().pieces(false);
  for (Piece& piece : trainer.optimizer_pieces(false)) pieces.push_back(std::move(piece));
  std::vector<std::byte> bytes;
  for (const Piece& piece : pieces) {
    const auto* data = static_cast<const std::byte*>(piece.data.data);
    bytes.insert(bytes.end(), data, data + piece.data.bytes());
  }
  return bytes;
}

TEST_P(LeftUndone, ChangesNothing) {
  const auto& [name, num_ranks, more] = GetParam();
  Overrides all = {"train.global_batch=16"};
  all.insert(all.end(), more.begin(), more.end());
  const Recipe recipe = recipe_with(all);
  const StopSignals signals;
  on_ranks(num_ranks, [&](comm::Group& ranks, Allocator& allocator) {
    const RunPlan plan = plan_run(recipe, DType::kF32, ranks.size(), 1, ranks.rank());
    RealRank real(recipe, DType::kF32, ranks, allocator, plan.step_memory);
    for (int64_t step = 0; step < 2; ++step) real.step(step);
    const std::vector<std::byte> before = state_of(real.trainer());
    Stops stops(ranks, signals, recipe, real.trainer().model().parallel());
    ASSERT_TRUE(stops.divides_steps());
    EXPECT_FALSE(stops.asked());
    int64_t ended = 0;
    stops.begin_step();
    const auto after = [&](int64_t number) {
      ++ended;
      if (ranks.rank() == ranks.size() - 1 && number == 1) raise(SIGTERM);
      stops.after_micro_batch(number);
    };
    EXPECT_THROW(real.run(2, after), StepLeft);
    real.skip();
    // Another rank may see the signal a micro-batch earlier: it is the process's.
    EXPECT_LE(ended, 2);
    EXPECT_TRUE(state_of(real.trainer()) == before) << "rank " << ranks.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LeftUndone,
    testing::Values(
        StoppedLayout{"one_rank", 1, {}},
        StoppedLayout{"one_rank_micro_batch_scope", 1, {"moe.balance.scope=micro_batch"}},
        StoppedLayout{"dp2_micro_batch_scope", 2, {"moe.balance.scope=micro_batch"}},
        StoppedLayout{"dp2_zero0", 2, {"parallel.zero=0"}},
        StoppedLayout{"dp2_zero2", 2, {"parallel.zero=2"}},
        StoppedLayout{
            "dp2_zero3_bucketed",
            2,
            {"parallel.zero=3", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
        StoppedLayout{"tp2_zero1", 4, {"parallel.tp=2", "train.recompute=true"}},
        StoppedLayout{"cp2_ring", 2, {"parallel.cp=2", "parallel.cp_exchange=ring"}},
        StoppedLayout{"tsp2", 2, {"parallel.tsp=2"}}, StoppedLayout{"ep2", 2, {"parallel.ep=2"}}),
    [](const auto& info) { return info.param.name; });

TEST(Stops, StepsAreDividedWhereNothingChangesBeforeTheirEnd) {
  const auto divides = [](const Overrides& more, int num_ranks = 1) {
    const Recipe recipe = recipe_with(more);
    const StopSignals signals;
    Allocator allocator(Device::kCpu);
    bool divided = false;
    on_ranks(1, [&](comm::Group& ranks, Allocator&) {
      divided = Stops(ranks, signals, recipe, resolve_parallel(recipe, num_ranks)).divides_steps();
    });
    return divided;
  };
  EXPECT_TRUE(divides({}));
  EXPECT_TRUE(divides({"moe.balance.scope=micro_batch"}));
  EXPECT_FALSE(divides({"train.trace_steps=1"}));
  EXPECT_FALSE(divides({"parallel.pp=2"}, 2));
}

// Short steps are not asked about in between: their last micro-batch is soon enough.
TEST(Stops, OfShortStepsNoVoteIsTakenBetweenMicroBatches) {
  const Recipe recipe = recipe_with({});
  on_ranks(1, [&](comm::Group& ranks, Allocator&) {
    const StopSignals signals;
    Stops stops(ranks, signals, recipe, resolve_parallel(recipe, 1));
    const Stops::Votes none = stops.after_step(0.01, false);
    EXPECT_FALSE(none.signal || none.time_up || none.second_try);
    raise(SIGUSR1);
    stops.begin_step();
    for (int64_t number = 0; number < 8; ++number) stops.after_micro_batch(number);
    const Stops::Votes votes = stops.after_step(4.0, true);  // half a second for each micro-batch
    EXPECT_TRUE(votes.signal && votes.second_try);
    EXPECT_THROW(stops.after_micro_batch(0), StepLeft);
    EXPECT_NO_THROW(stops.after_micro_batch(7));
  });
}

TEST(Stops, TimeIsUpAfterMaxMinutes) {
  on_ranks(1, [&](comm::Group& ranks, Allocator&) {
    const StopSignals signals;
    const Recipe forever = recipe_with({});
    EXPECT_EQ(Stops(ranks, signals, forever, resolve_parallel(forever, 1)).seconds_left(),
              std::numeric_limits<double>::infinity());
    const Recipe recipe = recipe_with({"train.max_minutes=1e-6"});
    Stops stops(ranks, signals, recipe, resolve_parallel(recipe, 1));
    while (stops.seconds_left() > 0.0) {
    }
    EXPECT_TRUE(stops.after_step(0.1, false).time_up);
  });
}

}  // namespace
}  // namespace ashlar::train
