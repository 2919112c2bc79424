// Replays on the machine of a profile: curves, uneven experts, slow ranks, devices.
#include "ashlar/sim/machine_costs.h"

#include <gtest/gtest.h>

#include "ashlar/sim/perfetto.h"
#include "ashlar/sim/program_builder.h"
#include "ashlar/sim/replay.h"
#include "tests/sim/expect_error.h"

namespace ashlar::sim {
namespace {

using machine::CollectiveOp;
using testing_support::expect_error;

machine::Quantity measured(double value, const char* unit) {
  return {value, unit, machine::Origin::kMeasured, "", "", 0};
}

// 10 us, and 1 us for each 1000 bytes that a rank receives.
machine::CollectiveCurve curve(CollectiveOp op, int64_t ranks) {
  machine::CollectiveCurve c;
  c.engine = "thread";
  c.op = op;
  c.dtype = "F32";
  c.shape = "all";
  c.ranks = ranks;
  for (double size = 64; size < 1e8; size *= 2) {
    const double us = 10 + even_received(op, ranks, size) / 1000;
    c.points.push_back({size, us, us, us});
  }
  return c;
}

// Two cores; products at 100 GFLOP/s.
machine::Profile cpu() {
  machine::Profile profile;
  profile.name = "here";
  profile.set("node.cores", measured(2, "1"));
  profile.set("compute.achievable_fp32", measured(0.1, "TFLOP/s"));
  profile.set("memory.triad", measured(10, "GB/s"));
  for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kAllGather,
                                CollectiveOp::kAllToAllV, CollectiveOp::kSendReceive})
    profile.set(curve(op, 2));
  return profile;
}

TEST(OperationTimes, ACurveOfTheGroupIsExactAndOthersAreNear) {
  const machine::Profile profile = cpu();
  const OperationTimes times(profile, "");
  EXPECT_EQ(times.engine(), "thread");
  const OperationTime exact = times.of(CollectiveOp::kAllGather, DType::kF32, 2, 1, 1 << 20);
  EXPECT_EQ(exact.source, TimeSource::kExact);
  EXPECT_NEAR(exact.fixed_s + exact.s_per_received * (1 << 19), 1e-6 * (10 + (1 << 19) / 1000.0),
              1e-8);
  // Four ranks: a byte costs the same, the floor three times as much.
  const OperationTime near = times.of(CollectiveOp::kAllGather, DType::kF32, 4, 1, 1 << 20);
  EXPECT_EQ(near.source, TimeSource::kNeighbour);
  EXPECT_NEAR(near.fixed_s, 30e-6, 1e-6);
  EXPECT_NEAR(near.s_per_received, 1e-9, 2e-11);
  // No curve of reduce_scatter: all_reduce sums too.
  EXPECT_EQ(times.of(CollectiveOp::kReduceScatter, DType::kF32, 2, 1, 1000).source,
            TimeSource::kNeighbour);
  machine::Profile bare;
  bare.name = "bare";
  expect_error([&] { OperationTimes(bare, "").of(CollectiveOp::kAllGather, DType::kF32, 2, 1, 1); },
               ErrorKind::kConfig, "ashlar bench collectives");
  expect_error([&] { OperationTimes(profile, "threat"); }, ErrorKind::kConfig,
               "did you mean 'thread'?");
}

// Two ranks with 2 experts each: a product of all rows, an exchange of rows.
RankPrograms experts() {
  ProgramBuilder builder(2);
  for (const int r : {0, 1}) {
    const int lane = builder.lane(r, "experts");
    const RankOperation rows{.op = CollectiveOp::kAllToAll,
                             .dtype = DType::kF32,
                             .lane = int16_t(lane),
                             .label = builder.text("rows"),
                             .group = builder.group("ep", std::array{0, 1}),
                             .number = 0,
                             .bytes = 8000,
                             .sent_bytes = 4000,
                             .received_bytes = 4000};
    builder.post(r, rows, 1, std::array{TraceMessage{1 - r, true, 4000}});
    builder.wait(r, lane, 1);
    builder.kernel(r,
                   {.op = "grouped_linear_forward",
                    .dtype = DType::kF32,
                    .dims = {2, 100, 64, 64},
                    .flop = 100'000'000,
                    .bytes = 1000,
                    .varies = TraceEvent::Varies::kExpertRows,
                    .count = 100},
                   {.block = 3});
    builder.kernel(r, {.op = "linear_forward", .dtype = DType::kF32, .flop = 50'000'000});
    builder.end_step(r);
  }
  return builder.finish();
}

Replayed run(const machine::Profile& profile, const RankPrograms& programs,
             const ImbalanceOptions& options = {}, bool keep_spans = false) {
  const WorkTimes kernels(profile, {});
  const Imbalance imbalance(programs, options);
  MachineCosts costs(profile, programs, kernels, imbalance, {});
  return replay(programs, costs, {.repeats = 1, .keep_spans = keep_spans});
}

TEST(MachineCosts, AHotExpertSlowsItsRankDown) {
  const RankPrograms programs = experts();
  const Replayed even = run(cpu(), programs);
  EXPECT_NEAR(even.ranks[0].compute_s, 1.5e-3, 1e-9);
  // Expert 0 has 2.5 times the mean; the others 0.5: 1.5 times the rows on rank 0.
  const Replayed hot = run(cpu(), programs, {.slow = {}, .hot = 2.5, .loads = {}});
  EXPECT_NEAR(hot.ranks[0].compute_s, 2.0e-3, 1e-9);
  EXPECT_NEAR(hot.ranks[1].compute_s, 1.0e-3, 1e-9);
  EXPECT_GT(hot.step_s[0], even.step_s[0] + 0.4e-3);
  expect_error([&] { run(cpu(), programs, {.slow = {}, .hot = 5, .loads = {}}); },
               ErrorKind::kConfig, "--hot 5 of 4 experts");
}

TEST(MachineCosts, LoadsOfARunCountByBlock) {
  const std::string metrics =
      "{\"event\":\"expert_loads\",\"step\":1,\"blocks\":{\"3\":[1,1,1,1]}}\n"
      "{\"step\":2,\"loss\":3}\n"
      "{\"event\":\"expert_loads\",\"step\":2,\"blocks\":{\"3\":[10,20,5,5],\"7\":[1,1,1,1]}}\n";
  const ExpertLoads loads = parse_loads(metrics, "metrics.jsonl");
  EXPECT_EQ(loads.at(3), (std::vector<double>{10, 20, 5, 5}));
  const Replayed replayed = run(cpu(), experts(), {.slow = {}, .hot = {}, .loads = loads});
  EXPECT_NEAR(replayed.ranks[0].compute_s, 1.5e-3 + 0.5e-3, 1e-9);  // 30 of 40 rows
  EXPECT_NEAR(replayed.ranks[1].compute_s, 1.0e-3, 1e-9);
  expect_error([] { parse_loads("{\"step\":1}\n", "m.jsonl"); }, ErrorKind::kData,
               "m.jsonl has no row of expert loads");
  expect_error(
      [&] {
        run(cpu(), experts(), {.slow = {}, .hot = {}, .loads = {{{3, {1, 1}}}}});
      },
      ErrorKind::kData, "the loads of block 3 are of 2 experts; the program has 4");
}

TEST(MachineCosts, ASlowRankTakesItsFactor) {
  const Replayed slow = run(cpu(), experts(), {.slow = {{1, 1.2}}, .hot = {}, .loads = {}});
  EXPECT_NEAR(slow.ranks[0].compute_s, 1.5e-3, 1e-9);
  EXPECT_NEAR(slow.ranks[1].compute_s, 1.8e-3, 1e-9);
  expect_error(
      [] {
        run(cpu(), experts(), {.slow = {{2, 1.2}}, .hot = {}, .loads = {}});
      },
      ErrorKind::kConfig, "--slow 2: there is no such rank; the last is 1");
}

TEST(MachineCosts, DevicesTakeLinksAndCurvesOfTheirGroups) {
  machine::Profile device = cpu();
  device.set("node.devices", measured(2, "1"));
  device.set("device.memory", measured(1e9, "B"));
  device.set("topology.link", measured(8, "GB/s"));
  device.set("topology.link_latency", measured(3, "us"));
  const Replayed by_curve = run(device, experts());
  EXPECT_NEAR(by_curve.ranks[0].exposed_s, 14e-6, 0.2e-6);
  device.collectives.clear();
  const Replayed by_law = run(device, experts());
  EXPECT_NEAR(by_law.ranks[0].exposed_s, 3e-6 + 4000 / 8e9, 1e-10);
}

TEST(MachineCosts, KernelsAreSlowerWhileALaneMovesData) {
  ProgramBuilder builder(2);
  for (const int r : {0, 1}) {
    builder.post(r,
                 {.op = CollectiveOp::kAllGather,
                  .dtype = DType::kF32,
                  .lane = int16_t(builder.lane(r, "world")),
                  .group = builder.group("world", std::array{0, 1}),
                  .number = 0,
                  .bytes = 2'000'000,
                  .received_bytes = 1'000'000},
                 1);
    builder.kernel(r, {.op = "linear_forward", .dtype = DType::kF32, .flop = 200'000'000});
    builder.end_step(r);
  }
  const RankPrograms programs = builder.finish();
  machine::Profile profile = cpu();
  profile.set("launch.lane_cores", measured(1, "1"));
  EXPECT_NEAR(run(profile, programs).step_s[0], 2e-3, 1e-9);
  profile.set("contention.products", measured(1.25, "1"));
  // The gather takes 1.01 ms, in which the product advances 0.808 ms.
  EXPECT_NEAR(run(profile, programs).step_s[0], 2e-3 + 0.2 * 1.01e-3, 3e-6);
}

TEST(Perfetto, ATimelineHasEveryRankAndLane) {
  const RankPrograms programs = experts();
  const std::string json = to_chrome_json(programs, run(cpu(), programs, {}, true));
  for (const char* text :
       {"\"name\":\"rank 1\"", "\"name\":\"lane experts\"", "\"name\":\"wait all_to_all rows\"",
        "\"name\":\"all_to_all rows\"", "\"name\":\"grouped_linear_forward\"", "\"block\":3",
        "\"cat\":\"operation\"", "ashlar-simulation-1"})
    EXPECT_NE(json.find(text), std::string::npos) << text << "\n" << json;
}

}  // namespace
}  // namespace ashlar::sim
