// Simulated steps of small recipes: programs from files and from memory, what is said about them.
#include "ashlar/plan/simulate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/checksum.h"
#include "ashlar/core/json.h"
#include "ashlar/plan/traces.h"
#include "tests/plan/small_machine.h"
#include "tests/support/errors.h"

namespace ashlar::plan {
namespace {

using ashlar::testing_support::message_of;

// Traces in files and in memory hold the same programs.
TEST(Simulate, FilesAndMemoryGiveTheSameStepBitForBit) {
  const auto files = memory_files();
  files->make_directories("traces");
  Log log([](std::string_view) {});
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"parallel.tp=2"},
                                                 {"parallel.zero=3", "train.micro_batch=1"},
                                                 {"parallel.cp=2"}}) {
    const Recipe recipe = tiny_recipe(layout);
    files->remove_all("traces");
    files->make_directories("traces");
    write_traces(recipe, DType::kF32, 4, {}, *files, "traces", log);
    const sim::RankPrograms read = programs_of(*files, "traces", log);
    const sim::RankPrograms made = programs_of(recipe, DType::kF32, 4, log);
    EXPECT_TRUE(read.dry);
    EXPECT_EQ(read.tokens, recipe.train.global_batch * recipe.data.sequence_length);
    EXPECT_EQ(read.tokens, made.tokens);
    ASSERT_EQ(read.kernels.size(), made.kernels.size());
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(read.ranks[r].events.size(), made.ranks[r].events.size());
      EXPECT_EQ(read.ranks[r].operations.size(), made.ranks[r].operations.size());
    }
    const SimulatedStep a = simulate_step(read, small_machine(), {}),
                        b = simulate_step(made, small_machine(), {});
    EXPECT_EQ(a.replayed.step_s, b.replayed.step_s);
    EXPECT_GT(a.step_s, 0);
    // Repeats of a dry step are alike behind the first.
    EXPECT_NEAR(a.replayed.step_s[2], a.replayed.step_s[3], 1e-2 * a.step_s);
    for (const sim::RankShare& rank : a.replayed.ranks)
      EXPECT_NEAR(rank.compute_s + rank.exposed_s + rank.waiting_s + rank.between_s, rank.step_s,
                  1e-12);
  }
}

TEST(Simulate, OperationsKeepTheTracesOrderOnEveryLane) {
  Log log([](std::string_view) {});
  const sim::RankPrograms programs =
      programs_of(tiny_recipe({"parallel.tp=2", "parallel.zero=1"}), DType::kF32, 4, log);
  SimulateOptions options;
  options.keep_spans = true;
  const SimulatedStep step = simulate_step(programs, small_machine(), options);
  for (size_t r = 0; r < 4; ++r) {
    const sim::RankProgram& program = programs.ranks[r];
    std::vector<std::vector<int32_t>> ran(program.lanes.size());
    std::vector<double> free_s(program.lanes.size());
    for (const sim::ReplaySpan& span : step.replayed.spans[r]) {
      if (span.kind != sim::ReplaySpan::Kind::kOperation) continue;
      const size_t lane = size_t(span.lane);
      EXPECT_GE(span.begin_s, free_s[lane]);
      free_s[lane] = span.end_s;
      ran[lane].push_back(span.index);
    }
    for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
      // The last repeat ends with the whole list; operations of the one before may come first.
      const std::vector<int32_t>& posted = program.lanes[lane].operations;
      ASSERT_GE(ran[lane].size(), posted.size());
      EXPECT_TRUE(std::equal(posted.rbegin(), posted.rend(), ran[lane].rbegin()));
    }
  }
}

TEST(Simulate, TheAnswerSaysWhatItRestsOn) {
  Log log([](std::string_view) {});
  const sim::RankPrograms programs =
      programs_of(tiny_recipe({"parallel.zero=1"}), DType::kF32, 2, log);
  const MachineFile machine = small_machine();
  const SimulatedStep step = simulate_step(programs, machine, {});
  const Json json = parse_json(to_json(step, machine), "json", ErrorKind::kCorrupt);
  EXPECT_EQ(json["kernel_shares"]["law"], 1.0);
  EXPECT_EQ(json["operation_shares"]["exact"], 1.0);
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["fingerprint"], machine.profile.fingerprint());
  EXPECT_EQ(json["commit"], "abc");
  EXPECT_GT(json["tokens_per_s"].get<double>(), 0);
  const std::string text = describe(step, machine);
  for (const char* part :
       {"times of kernels     0.0 % exact, 0.0 % neighbour, 100.0 % law", "compute.achievable_fp32",
        "no table of kernels", "not calibrated", "commit abc",
        "replayed             4 steps of 2 ranks on 1 node", "(thread)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(Simulate, ASlowRankMovesTheStep) {
  Log log([](std::string_view) {});
  const sim::RankPrograms programs =
      programs_of(tiny_recipe({"parallel.zero=1"}), DType::kF32, 2, log);
  const SimulatedStep even = simulate_step(programs, small_machine(), {});
  SimulateOptions options;
  options.imbalance.slow = {{1, 1.2}};
  const SimulatedStep slow = simulate_step(programs, small_machine(), options);
  const double more_s = 0.2 * even.replayed.ranks[1].compute_s;
  EXPECT_GT(slow.step_s, even.step_s + 0.5 * more_s);  // lanes take less from the fast rank's core
  EXPECT_LT(slow.step_s, even.step_s + 1.01 * more_s);
  EXPECT_GT(slow.replayed.ranks[0].waiting_s, even.replayed.ranks[0].waiting_s + 0.5 * more_s);
}

// Two short steps stand for one of many micro-batches.
TEST(Simulate, ALongStepGrowsFromTwoShortOnes) {
  Log log([](std::string_view) {});
  for (const std::vector<std::string>& layout :
       std::vector<std::vector<std::string>>{{"parallel.zero=1"},
                                             {"parallel.zero=3"},
                                             {"parallel.tp=2"},
                                             {"parallel.cp=2"},
                                             {"parallel.pp=2"}}) {
    SCOPED_TRACE(layout[0]);
    std::vector<std::string> keys = {"train.micro_batch=1", "train.global_batch=128"};
    keys.insert(keys.end(), layout.begin(), layout.end());
    const Recipe recipe = tiny_recipe(keys);
    const auto simulate = [&](const Recipe& r) {
      return simulate_step(programs_of(r, DType::kF32, 2, log), small_machine(), {});
    };
    const auto steps = train::short_steps(recipe, resolve_parallel(recipe, 2));
    ASSERT_TRUE(steps);
    const SimulatedStep whole = simulate(recipe);
    SimulatedStep grown = simulate(steps->shorter);
    ASSERT_LT(grown.step_s, 0.5 * whole.step_s);
    grow(grown, simulate(steps->longer), *steps, whole.tokens);
    EXPECT_NEAR(grown.step_s, whole.step_s, 1e-3 * whole.step_s);
    for (const int rank : whole.simulated) {
      const sim::RankShare &a = grown.replayed.ranks[size_t(rank)],
                           &b = whole.replayed.ranks[size_t(rank)];
      EXPECT_NEAR(a.compute_s, b.compute_s, 1e-3 * whole.step_s) << rank;
      EXPECT_NEAR(a.exposed_s, b.exposed_s, 1e-3 * whole.step_s) << rank;
      EXPECT_NEAR(a.waiting_s, b.waiting_s, 1e-3 * whole.step_s) << rank;
    }
  }
}

// A node, and two nodes where the profile knows what links them.
TEST(Simulate, EveryShippedMachineRunsAStep) {
  const auto files = posix_files();
  Log log([](std::string_view) {});
  for (const std::string& name : machine::shipped_names()) {
    const MachineFile machine = read_machine(*files, name);
    for (const int ranks : {8, 16}) {
      if (ranks > 8 && !machine.profile.find("topology.nic")) continue;
      const std::string ranks_text = std::to_string(ranks);
      const Recipe recipe =
          tiny_recipe({"train.micro_batch=1", "train.global_batch=" + ranks_text});
      const sim::RankPrograms programs = programs_of(recipe, DType::kBF16, ranks, log);
      const SimulatedStep step = simulate_step(programs, machine, {});
      EXPECT_GT(step.step_s, 0) << name << " " << ranks;
      EXPECT_EQ(step.num_nodes, ranks / 8) << name;
    }
  }
}

TEST(Simulate, MachinesAndTheirTablesAreChecked) {
  const auto files = memory_files();
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { read_machine(*files, "h101"); })
                .find("there is no such file or machine; did you mean 'h100'?"),
            std::string::npos);
  EXPECT_EQ(read_machine(*files, "h200").profile.name, "h200");
  files->make_directories("m");
  const std::string table =
      "op\tdtype\tgroups\trows\tcols\tdepth\tflop\tbytes\tranks\tp10_us\tmedian_us\tp90_us\tn\n"
      "copy\tF32\t0\t0\t0\t0\t0\t1000\t2\t1.0\t2.0\t3.0\t9\n";
  write_text(*files, "m/t.tsv", table);
  const uint64_t sum = xxh3_64(std::as_bytes(std::span(table)));
  const auto with_sum = [&](uint64_t xxh3) {
    return machine_text() + fmt::format("[kernels]\nfile = \"t.tsv\"\nxxh3 = \"{:016x}\"\n", xxh3);
  };
  write_text(*files, "m/good.toml", with_sum(sum));
  EXPECT_EQ(read_machine(*files, "m/good.toml").kernels.at(0).median_us, 2);
  write_text(*files, "m/bad.toml", with_sum(sum + 1));
  message_of(ErrorKind::kData, [&] { read_machine(*files, "m/bad.toml"); });
}

}  // namespace
}  // namespace ashlar::plan
