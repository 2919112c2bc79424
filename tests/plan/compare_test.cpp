// Recorded steps beside a simulated one.
#include "ashlar/plan/compare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "tests/plan/small_machine.h"
#include "tests/support/errors.h"

namespace ashlar::plan {
namespace {

using ashlar::testing_support::message_of;

std::string event(const char* category, const std::string& name, int rank, double begin_us,
                  double us, const std::string& args) {
  return fmt::format(
      "{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":{},\"tid\":2,\"ts\":{},\"dur\":{},\"cat\":\"{}\","
      "\"args\":{{{}}}}},\n",
      name, rank, begin_us, us, category, args);
}

// Two steps of 1000 us: 600 in two kernels, 200 in a wait, 50 in a post.
std::string recorded(int rank, int ranks, const std::string& more = "") {
  std::string text = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"format\":\"ashlar-trace-2\",\"rank\":{},"
      "\"ranks\":{}{}}},\"traceEvents\":[\n",
      rank, ranks, more);
  for (const double at : {0.0, 1000.0}) {
    text += event("step", "step 1", rank, at, 1000, "\"step\":1");
    text += event("kernel", "linear_forward", rank, at, 400, "\"phase\":\"forward\"");
    text += event("kernel", "adamw", rank, at + 400, 200, "\"phase\":\"optimizer\"");
    text += event("post", "post all_reduce sums", rank, at + 600, 50, "\"phase\":\"forward\"");
    text += event("wait", "wait all_reduce sums", rank, at + 650, 200, "\"phase\":\"forward\"");
    text += event("operation", "all_reduce sums", rank, at + 600, 240, "\"bytes\":1");
  }
  text.resize(text.size() - 2);
  return text + "\n]}\n";
}

TEST(Compare, SumsAreThoseOfTheMeanRankAndStep) {
  const auto files = memory_files();
  files->make_directories("run/trace");
  for (const int rank : {0, 1})
    write_text(*files, fmt::format("run/trace/steps-2-3-rank-{}.json", rank), recorded(rank, 2));
  const StepSums sums = recorded_sums(*files, "run");
  EXPECT_EQ(sums.num_ranks, 2);
  EXPECT_EQ(sums.num_steps, 2);
  EXPECT_NEAR(sums.step_s, 1000e-6, 1e-12);
  EXPECT_NEAR(sums.kernels_s, 600e-6, 1e-12);
  EXPECT_NEAR(sums.waits_s, 200e-6, 1e-12);
  EXPECT_NEAR(sums.posts_s, 50e-6, 1e-12);
  EXPECT_NEAR(sums.rest_s(), 150e-6, 1e-12);
  EXPECT_NEAR(sums.kernels.at("adamw"), 200e-6, 1e-12);
  EXPECT_NEAR(sums.phases.at("forward"), 650e-6, 1e-12);
  EXPECT_NEAR(sums.waits.at("wait all_reduce sums"), 200e-6, 1e-12);
}

TEST(Compare, TheTimelineOfASimulationHasItsOwnSums) {
  Log log([](std::string_view) {});
  const auto programs = programs_of(tiny_recipe({"parallel.tp=2"}), DType::kF32, 2, log);
  SimulateOptions options;
  options.keep_spans = true;
  const SimulatedStep step = simulate_step(programs, small_machine(), options);
  const auto files = memory_files();
  write_text(*files, "simulated.json", perfetto_of(programs, step));
  const StepSums sums = simulated_sums(*files, "simulated.json");
  EXPECT_NEAR(sums.step_s, step.replayed.step_s.back(), 1e-12);
  double compute_s = 0, waits_s = 0;
  for (const sim::RankShare& rank : step.replayed.ranks) {
    compute_s += rank.compute_s / 2;
    waits_s += (rank.exposed_s + rank.waiting_s) / 2;
  }
  // The timeline has whole nanoseconds.
  EXPECT_NEAR(sums.kernels_s, compute_s, 1e-3 * compute_s);
  EXPECT_NEAR(sums.waits_s, waits_s, 1e-3 * waits_s + 1e-6);
  EXPECT_GT(sums.kernels.at("linear_forward"), 0);
  EXPECT_GT(sums.phases.at("backward"), 0);
}

StepSums simple(double kernels_s) {
  StepSums sums;
  sums.num_ranks = 2, sums.num_steps = 1;
  sums.step_s = 1, sums.kernels_s = kernels_s;
  sums.kernels = {{"adamw", 0.1}, {"linear_forward", kernels_s - 0.1}};
  return sums;
}

TEST(Compare, NamesWhatPartsMost) {
  const StepSums recorded = simple(0.5), simulated = simple(0.7);
  const std::string text = describe_comparison(recorded, simulated, {});
  EXPECT_LT(text.find("linear_forward"), text.find("adamw"));
  EXPECT_NE(text.find("+20.0 %"), std::string::npos) << text;
  const Json json =
      parse_json(comparison_json(recorded, simulated, {}), "comparison", ErrorKind::kData);
  EXPECT_EQ(json["by_kernel"]["linear_forward"]["recorded_s"], 0.4);
}

TEST(Compare, W9PlannedMemoryStandsBesideResidentMemory) {
  const auto files = memory_files();
  files->make_directories("run/trace");
  write_text(*files, "run/metrics.jsonl",
             "{\"event\":\"start\",\"step\":0}\n"
             "{\"event\":\"memory\",\"step\":1,\"tags\":{\"weights\":1048576,\"saved\":1048576},"
             "\"resident_bytes\":10485760,\"ranks_in_process\":2}\n");
  for (const char* place : {"run", "run/trace"}) {
    const MemoryRow memory = memory_row(*files, place);
    EXPECT_EQ(memory.allocated_bytes, 2 << 20) << place;
    EXPECT_EQ(memory.resident_bytes, 10 << 20);
    EXPECT_EQ(memory.ranks, 2);
  }
  const std::string text = describe_comparison(simple(0.5), simple(0.5), memory_row(*files, "run"));
  EXPECT_NE(text.find("planned and allocated 2.00 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("6.00 MiB outside of the plan"), std::string::npos) << text;
  EXPECT_EQ(memory_row(*files, "elsewhere").allocated_bytes, 0);
}

TEST(Compare, RefusesWhatIsNoRecording) {
  const auto files = memory_files();
  files->make_directories("traces");
  const auto of = [&] {
    return message_of(ErrorKind::kData, [&] { recorded_sums(*files, "traces"); });
  };
  EXPECT_NE(of().find("has no trace files"), std::string::npos);
  write_text(*files, "traces/dry-rank-0.json", recorded(0, 1, ",\"dry\":true"));
  EXPECT_NE(of().find("is of a dry run"), std::string::npos);
  write_text(*files, "traces/dry-rank-0.json", recorded(0, 2));
  EXPECT_NE(of().find("the traces of 1 ranks; expected those of all 2"), std::string::npos);
  EXPECT_NE(message_of(ErrorKind::kData, [&] { simulated_sums(*files, "traces/dry-rank-0.json"); })
                .find("is no timeline of a simulation"),
            std::string::npos);
  StepSums one = simple(0.5);
  one.num_ranks = 1;
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { describe_comparison(one, simple(0.5), {}); })
                .find("simulate the run's layout"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::plan
