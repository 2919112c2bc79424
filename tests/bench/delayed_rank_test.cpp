// A rank whose operations are late: on real ranks and simulated, the same ranks wait for the same
// operations, about as long, and nobody else does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "ashlar/bench/random_batch.h"
#include "ashlar/comm/measuring.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/sim/replay.h"
#include "ashlar/sim/traces.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"
#include "tests/sim/simple_costs.h"

namespace ashlar::bench {
namespace {

constexpr int kRanks = 4, kLate = 3;
constexpr double kDelay_s = 0.02;

using Waits = std::map<std::string, double>;  // seconds, by "rank 2, tp"

std::string key_of(int rank, const std::string& group) {
  return fmt::format("rank {}, {}", rank, group);
}

// The waits of one rank in its trace, by the group of what it waits for.
void add_waits(int rank, const Trace& trace, Waits& waits) {
  std::map<std::pair<int, int64_t>, std::string> groups;
  for (const TraceEvent& event : trace.events()) {
    if (event.kind == TraceEvent::Kind::kPost && event.lane >= 0)
      groups[{event.lane, event.ticket}] = trace.group(event.group).name;
    if (event.kind != TraceEvent::Kind::kWait) continue;
    const auto group = groups.find({event.lane, event.ticket});
    if (group != groups.end()) waits[key_of(rank, group->second)] += event.end_s - event.start_s;
  }
}

struct Recorded {
  Waits waits;
  sim::RankPrograms programs;
};

// A step of real ranks, of which one is late in each operation of its tp group.
Recorded late_step(const Recipe& recipe) {
  Recorded recorded;
  sim::ProgramBuilder builder(kRanks);
  std::mutex mutex;
  Allocator allocator(Device::kCpu);
  comm::run_ranks(kRanks, {}, allocator, [&](comm::Group& ranks) {
    Threads threads(1);
    train::Trainer trainer(
        recipe, DType::kF32, allocator, threads, ranks,
        train::plan_run(recipe, DType::kF32, kRanks, 1, ranks.rank()).step_memory);
    trainer.initialize();
    const RandomBatch batch(trainer);
    batch.step(trainer, 0);
    ranks.barrier("test").wait();
    if (ranks.rank() == kLate) comm::delay(trainer.model().groups().tp(), kDelay_s);
    Trace& trace = ranks.trace();
    trace.start(TraceRoom{1 << 14, 1 << 12, 1 << 14, 1 << 14});
    batch.step(trainer, 1);
    trace.stop();
    ranks.barrier("test").wait();
    const std::lock_guard lock(mutex);
    add_waits(ranks.rank(), trace, recorded.waits);
    sim::add_trace(builder, ranks.rank(), trace);
  });
  recorded.programs = builder.finish();
  return recorded;
}

// Every operation of the late rank's tp group takes the delay, everything else nearly nothing.
struct LateCosts : sim::testing_support::SimpleCosts {
  explicit LateCosts(const sim::RankPrograms& programs) : SimpleCosts(programs) {
    for (const sim::KernelWork& work : programs.kernels) kernels[work.op] = 1e-6;
  }
  std::vector<sim::OperationPart> parts(const sim::RankGroup& group,
                                        const sim::RankOperation&) const override {
    const bool late =
        group.name == "tp" && std::count(group.ranks.begin(), group.ranks.end(), kLate) > 0;
    return {{.latency_s = late ? kDelay_s : 1e-6}};
  }
};

Waits simulated_waits(const sim::RankPrograms& programs) {
  LateCosts costs(programs);
  const sim::Replayed replayed = sim::replay(programs, costs, {.repeats = 1, .keep_spans = true});
  EXPECT_EQ(replayed.problem, "");
  Waits waits;
  for (int rank = 0; rank < kRanks; ++rank) {
    const sim::RankProgram& program = programs.ranks[size_t(rank)];
    for (const sim::ReplaySpan& span : replayed.spans[size_t(rank)]) {
      if (span.kind != sim::ReplaySpan::Kind::kWait) continue;
      const sim::ProgramEvent& event = program.events[size_t(span.index)];
      const auto& lane = program.lanes[size_t(event.lane)];
      const sim::RankOperation& operation =
          program.operations[size_t(lane.operations[size_t(event.value)])];
      waits[key_of(rank, programs.groups[size_t(operation.group)].name)] +=
          span.end_s - span.begin_s;
    }
  }
  return waits;
}

TEST(DelayedRank, RealAndSimulatedRanksWaitForTheSame) {
  const std::vector<std::string> keys = {"train.precision=fp32", "train.threads=1",
                                         "train.micro_batch=1",  "optim.matrices=adamw",
                                         "parallel.tp=2",        "parallel.zero=0"};
  const Recipe recipe = load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", keys);
  const Recorded recorded = late_step(recipe);
  const Waits simulated = simulated_waits(recorded.programs);
  // Its partner and the rank itself wait for their tp group; the others wait for those two once the
  // gradients are summed.
  ASSERT_GT(simulated.at("rank 2, tp"), 5 * kDelay_s);
  ASSERT_GT(simulated.at("rank 0, data"), 5 * kDelay_s);
  ASSERT_LT(simulated.at("rank 0, tp"), kDelay_s);
  ASSERT_LT(simulated.at("rank 2, data"), kDelay_s);
  for (const auto& [who, seconds] : simulated) {
    const auto real = recorded.waits.find(who);
    ASSERT_NE(real, recorded.waits.end()) << who;
    if (seconds > kDelay_s) {
      EXPECT_GT(real->second, 0.7 * seconds) << who;
      EXPECT_LT(real->second, 2 * seconds) << who;
    } else {
      EXPECT_LT(real->second, 0.5 * simulated.at("rank 2, tp")) << who;
    }
  }
}

}  // namespace
}  // namespace ashlar::bench
