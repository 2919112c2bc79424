#include "ashlar/plan/traces.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/core/json.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/read_recipe.h"
#include "tests/support/errors.h"

namespace ashlar::plan {
namespace {

Recipe tiny(const std::vector<std::string>& overrides) {
  const auto files = posix_files();
  return train::read_recipe(*files, ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

// Every rank's file has the events that its plan counted, and names its groups and their ranks.
TEST(DryTraces, HaveTheEventsOfThePlan) {
  const auto files = memory_files();
  files->make_directories("traces");
  Log log([](std::string_view) {});
  const Recipe recipe = tiny({"parallel.tp=2"});
  write_traces(recipe, DType::kF32, 4, {}, *files, "traces", log);
  EXPECT_EQ(files->list("traces").size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string name = "traces/dry-rank-" + std::to_string(rank) + ".json";
    const Json trace = parse_json(read_text(*files, name), name, ErrorKind::kCorrupt);
    const Json& about = trace["otherData"];
    EXPECT_EQ(about["dry"], true);
    EXPECT_EQ(about["rank"], rank);
    EXPECT_EQ(about["dropped_events"], 0);
    int64_t on_compute = 0;
    std::map<int, int64_t> on_lane;  // by thread of the file
    std::set<std::string> groups;
    for (const Json& event : trace["traceEvents"]) {
      const std::string kind = event.value("cat", "");
      if (event["ph"] != "X") continue;
      if (kind == "operation") on_lane[event["tid"].get<int>()] += 2;  // a begin and an end
      if (kind == "kernel" || kind == "post" || kind == "wait") ++on_compute;
      if (kind == "post") groups.insert(event["args"]["group"].get<std::string>());
    }
    EXPECT_EQ(groups, (std::set<std::string>{"data", "model", "tp"}));
    Threads threads(1);
    const train::RunPlan plan =
        train::plan_kind(recipe, DType::kF32, 4, std::span(&rank, 1), threads).first;
    EXPECT_EQ(on_compute, plan.trace.events);
    int64_t busiest_lane = 0;
    for (const auto& [thread, count] : on_lane) busiest_lane = std::max(busiest_lane, count);
    EXPECT_LE(busiest_lane, plan.trace.lane_events);  // room: the busiest of each micro-batch
    EXPECT_GT(busiest_lane, plan.trace.lane_events / 2);
  }
}

TEST(DryTraces, ManyRanksNeedAChoice) {
  const auto files = memory_files();
  files->make_directories("traces");
  Log log([](std::string_view) {});
  EXPECT_NE(ashlar::testing_support::message_of(
                ErrorKind::kConfig,
                [&] { write_traces(tiny({}), DType::kF32, 128, {}, *files, "traces", log); })
                .find("--rank"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::plan
