#include "ashlar/launch/launch_files.h"

#include <gtest/gtest.h>

namespace ashlar::launch {
namespace {

TEST(LaunchFiles, TheStateComesBackOnAnotherClock) {
  const auto files = memory_files();
  EXPECT_EQ(read_policy_state(*files, "state.json", 1000), PolicyState{});
  const PolicyState state{.num_faults = 3,
                          .restarts = {10, 20},
                          .furthest = 60,
                          .signatures = {"crash: #", "hang: rank #"},
                          .faults = {FaultClass::kCrash, FaultClass::kHang},
                          .from_step = 40,
                          .rate_factor = 0.25};
  write_policy_state(*files, "state.json", state, 1000);
  PolicyState later = state;
  later.restarts = {-490, -480};
  EXPECT_EQ(read_policy_state(*files, "state.json", 1500), later);
}

TEST(LaunchFiles, ADamagedStateIsNamed) {
  const auto files = memory_files();
  for (const auto& [was, is] : {std::pair{"\"v\":1", "\"v\":2"},
                                {"\"crash\"", "\"boredom\""},
                                {"\"rate_factor\":0.5", "\"rate_factor\":0"},
                                {"\"restarts\":[11.0]", "\"restarts\":[\"11\"]"}}) {
    write_policy_state(*files, "state.json",
                       {.restarts = {1}, .faults = {FaultClass::kCrash}, .rate_factor = 0.5}, 10);
    std::string text = read_text(*files, "state.json");
    const size_t at = text.find(was);
    ASSERT_NE(at, text.npos) << was << " in " << text;
    write_text(*files, "state.json", text.replace(at, std::string(was).size(), is));
    EXPECT_THROW(read_policy_state(*files, "state.json", 10), Error) << is;
  }
}

std::string skip_row(int64_t step, int64_t targets) {
  return "{\"event\":\"skip\",\"step\":" + std::to_string(step) +
         ",\"reason\":\"loss is nan\",\"targets\":" + std::to_string(targets) + ",\"samples\":[" +
         std::to_string(2 * step) + "]}\n";
}

TEST(LaunchFiles, SkippedStepsAreTheLastThousand) {
  const auto files = memory_files();
  EXPECT_TRUE(skipped_steps(*files, "metrics.jsonl").empty());
  write_text(*files, "metrics.jsonl",
             skip_row(500, 8) + skip_row(501, 8) + "{\"step\":502,\"loss\":1.5}\n" +
                 skip_row(700, 0) + skip_row(1500, 8) + "{\"event\":\"skip\",\"st");
  const std::vector<HarmfulStep> steps = skipped_steps(*files, "metrics.jsonl");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 501);
  EXPECT_EQ(steps[0].samples, std::vector<int64_t>{1002});
  EXPECT_EQ(steps[1].step, 1500);
  EXPECT_EQ(steps[1].reason, "loss is nan");
}

TEST(LaunchFiles, TheLastStepDoneHasTheLastRow) {
  const auto files = memory_files();
  EXPECT_EQ(last_step_done(*files, "metrics.jsonl"), 0);
  write_text(*files, "metrics.jsonl", skip_row(500, 8));
  EXPECT_EQ(last_step_done(*files, "metrics.jsonl"), 0);
  write_text(*files, "metrics.jsonl",
             "{\"step\":502,\"loss\":1.5}\n{\"step\":481,\"loss\":1.6}\n" + skip_row(500, 8) +
                 "{\"step\":482,\"lo");
  EXPECT_EQ(last_step_done(*files, "metrics.jsonl"), 481) << "a restart went back to it";
}

TEST(LaunchFiles, AnOldSkipIsNoPartOfTheLastTrouble) {
  const std::vector<HarmfulStep> steps{{100}, {840}, {890}, {941}, {990}, {991}, {1041}};
  EXPECT_EQ(begin_of_last_trouble(steps), 941);
  EXPECT_EQ(begin_of_last_trouble(std::span(steps).first(3)), 840);
  EXPECT_EQ(begin_of_last_trouble(std::span(steps).first(1)), 100);
}

}  // namespace
}  // namespace ashlar::launch
