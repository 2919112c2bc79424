// Programs of a mesh against the trace of every rank; lumped replays against whole ones.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "ashlar/plan/simulate.h"
#include "ashlar/sim/traces.h"
#include "ashlar/train/dry_rank.h"
#include "tests/plan/mesh_cases.h"
#include "tests/support/errors.h"

namespace ashlar::plan {
namespace {

using ashlar::testing_support::message_of;
using train::testing_support::Overrides;
using train::testing_support::recipe_with;

Log silent() {
  return Log([](std::string_view) {});
}

sim::RankPrograms one_by_one(const Recipe& recipe, int num_ranks) {
  sim::ProgramBuilder builder(num_ranks);
  Threads threads(1);
  for (int rank = 0; rank < num_ranks; ++rank) {
    train::DryRank dry(recipe, DType::kF32, num_ranks, rank, threads);
    dry.trace_step([&](const Trace& trace, const train::DryRank::OwnWork&) {
      sim::add_trace(builder, rank, trace);
    });
  }
  return builder.finish();
}

std::string text_of(const sim::RankPrograms& programs, const sim::RankProgram& program,
                    const sim::ProgramEvent& event) {
  using Kind = sim::ProgramEvent::Kind;
  const sim::ProgramPlace& place = programs.places[size_t(event.place)];
  std::string text = fmt::format("{} {} {} {}: ", programs.texts[size_t(place.phase)], place.block,
                                 place.micro_batch, int(place.branch));
  if (event.kind == Kind::kKernel) {
    const sim::KernelWork& work = programs.kernels[size_t(event.value)];
    return text + fmt::format("{} {} {} flop {} bytes, {} {} {} {}, {} {}", work.op,
                              int(work.dtype), work.flop, work.bytes, work.dims.groups,
                              work.dims.rows, work.dims.cols, work.dims.depth, int(work.varies),
                              work.count);
  }
  if (event.kind == Kind::kWait) return text + fmt::format("wait {} {}", event.lane, event.value);
  if (event.kind == Kind::kEndOfStep) return text + "end";
  const sim::RankOperation& o = program.operations[size_t(event.value)];
  text +=
      fmt::format("{} among {}, member {}, type {}, lane {}, root {}, {} rounds, {} {} {} bytes",
                  programs.name_of(o), programs.groups[size_t(o.group)].ranks, o.member,
                  int(o.dtype), o.lane, o.root, o.rounds, o.bytes, o.sent_bytes, o.received_bytes);
  for (int i = 0; i < o.num_messages; ++i) {
    const TraceMessage& m = program.messages[size_t(o.first_message + i)];
    text += fmt::format(" {}{}:{}", m.sends ? "to " : "from ", m.rank, m.bytes);
  }
  return text;
}

class MeshPrograms : public testing::TestWithParam<MeshCase> {};

TEST_P(MeshPrograms, EqualTheTracesOfAllRanks) {
  Log log = silent();
  const int num_ranks = GetParam().num_ranks;
  const Recipe recipe = recipe_with(GetParam().overrides);
  const sim::RankPrograms made = programs_of(recipe, DType::kF32, num_ranks, log);
  const sim::RankPrograms all = one_by_one(recipe, num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const sim::RankProgram &a = made.ranks[size_t(rank)], &b = all.ranks[size_t(rank)];
    EXPECT_EQ(a.num_steps, 1);
    ASSERT_EQ(a.lanes.size(), b.lanes.size());
    for (size_t lane = 0; lane < a.lanes.size(); ++lane) {
      EXPECT_EQ(a.lanes[lane].name, b.lanes[lane].name);
      EXPECT_EQ(a.lanes[lane].operations, b.lanes[lane].operations);
    }
    for (size_t i = 0; i < std::min(a.events.size(), b.events.size()); ++i)
      ASSERT_EQ(text_of(made, a, a.events[i]), text_of(all, b, b.events[i]))
          << "rank " << rank << ", event " << i;
    ASSERT_EQ(a.events.size(), b.events.size()) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, MeshPrograms, testing::ValuesIn(kMeshes),
                         [](const testing::TestParamInfo<MeshCase>& info) {
                           return info.param.name;
                         });

// Sixteen nodes of four devices behind switches, and a spine that is too narrow for all.
MachineFile cluster() {
  MachineFile machine;
  const auto set = [&](const char* key, double value, const char* unit) {
    machine.profile.set(key, {value, unit, machine::Origin::kMeasured, "", "", 0});
  };
  machine.profile.name = "cluster";
  set("node.devices", 4, "1");
  set("device.memory", 1e9, "B");
  set("topology.link", 50, "GB/s");
  set("topology.link_latency", 5, "us");
  set("topology.nic", 25, "GB/s");
  set("topology.nic_latency", 10, "us");
  set("topology.oversubscription", 4, "1");
  set("compute.achievable_fp32", 10, "TFLOP/s");
  set("memory.triad", 1000, "GB/s");
  return machine;
}

struct LumpCase {
  std::string name;
  Overrides overrides;
  size_t num_simulated;
};

class LumpedRanks : public testing::TestWithParam<LumpCase> {};

TEST_P(LumpedRanks, TakeTheTimeOfAll64) {
  Log log = silent();
  Overrides overrides = {"train.global_batch=128", "data.num_streams=128", "optim.matrices=adamw"};
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  const Recipe recipe = recipe_with(overrides);
  const SimulatedStep all = simulate_step(programs_of(recipe, DType::kF32, 64, log), cluster(), {});
  const SimulatedStep lumped =
      simulate_step(programs_of(recipe, DType::kF32, 64, log, true), cluster(), {});
  EXPECT_EQ(all.simulated.size(), 64u);
  ASSERT_EQ(lumped.simulated.size(), GetParam().num_simulated);
  EXPECT_NEAR(lumped.step_s, all.step_s, 1e-9 * all.step_s);
  for (const int rank : lumped.simulated) {
    const sim::RankShare &a = lumped.replayed.ranks[size_t(rank)],
                         &b = all.replayed.ranks[size_t(rank)];
    EXPECT_NEAR(a.compute_s, b.compute_s, 1e-9 * all.step_s) << rank;
    EXPECT_NEAR(a.exposed_s, b.exposed_s, 1e-9 * all.step_s) << rank;
    EXPECT_NEAR(a.waiting_s, b.waiting_s, 1e-9 * all.step_s) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LumpedRanks,
    testing::Values(LumpCase{"dp", {"parallel.zero=0"}, 1},
                    LumpCase{"dp_tp", {"parallel.zero=0", "parallel.tp=2"}, 2},
                    LumpCase{"dp_pp", {"parallel.zero=0", "parallel.pp=2"}, 2},
                    LumpCase{"dp_cp_tp", {"parallel.zero=0", "parallel.tp=2", "parallel.cp=2"}, 4},
                    LumpCase{"dp_ep", {"parallel.zero=0", "parallel.ep=2"}, 2}),
    [](const testing::TestParamInfo<LumpCase>& info) { return info.param.name; });

// All ranks with the same experts have their load, so one of them stands for all.
TEST(LumpedRanks, HaveTheLoadsOfTheirExperts) {
  Log log = silent();
  MachineFile slow = cluster();  // whose products take longer than its messages
  slow.profile.set("compute.achievable_fp32",
                   {0.001, "TFLOP/s", machine::Origin::kMeasured, "", "", 0});
  for (const Overrides& layout : std::vector<Overrides>{{"parallel.ep=2"},
                                                        {"parallel.ep=4", "parallel.tp=2"},
                                                        {"parallel.ep=4", "parallel.cp=2"}}) {
    Overrides overrides = {"train.global_batch=32", "data.num_streams=32", "optim.matrices=adamw",
                           "parallel.zero=0"};
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    const Recipe recipe = recipe_with(overrides);
    const sim::RankPrograms whole = programs_of(recipe, DType::kF32, 16, log),
                            lumped = programs_of(recipe, DType::kF32, 16, log, true);
    const double even_s = simulate_step(whole, slow, {}).step_s;
    SimulateOptions hot, loads;
    hot.imbalance.hot = 2.5;
    sim::ExpertLoads& counts = loads.imbalance.loads.emplace();
    for (int32_t block = 0; block < int32_t(recipe.model.num_hidden_layers); ++block)
      counts[block] = {7, 1, double(1 + block), 3};
    for (const SimulateOptions& options : {hot, loads}) {
      const double all_s = simulate_step(whole, slow, options).step_s;
      EXPECT_GT(all_s, 1.05 * even_s);
      EXPECT_NEAR(simulate_step(lumped, slow, options).step_s, all_s, 1e-9 * all_s);
    }
  }
}

TEST(LumpedRanks, WithShardsOfUnlikeLengthsAreNear) {
  Log log = silent();
  const Recipe recipe = recipe_with(
      {"train.global_batch=64", "data.num_streams=64", "parallel.zero=2", "parallel.tp=2"});
  const double all_s =
      simulate_step(programs_of(recipe, DType::kF32, 64, log), cluster(), {}).step_s;
  const SimulatedStep lumped =
      simulate_step(programs_of(recipe, DType::kF32, 64, log, true), cluster(), {});
  EXPECT_NEAR(lumped.step_s, all_s, 0.05 * all_s);
}

TEST(LumpedRanks, RefuseOneThatIsSlow) {
  Log log = silent();
  const sim::RankPrograms programs = programs_of(
      recipe_with({"train.global_batch=8", "data.num_streams=8"}), DType::kF32, 4, log, true);
  SimulateOptions options;
  options.imbalance.slow = {{3, 1.5}};
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { simulate_step(programs, cluster(), options); })
                .find("--slow 3=1.5"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::plan
