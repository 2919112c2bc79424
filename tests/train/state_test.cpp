// trainer.json of a checkpoint is read strictly: what no save writes is told of by its key.
#include "ashlar/train/state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"

namespace ashlar::train {
namespace {

nlohmann::ordered_json good() {
  return {{"step", 7},
          {"samples", 28},
          {"tokens", 896},
          {"seconds", 1.5},
          {"seed", 1},
          {"optimizer_steps", 6},
          {"balancer_updates", 5},
          {"skipped", 4},
          {"non_finite", 3},
          {"consecutive_skips", 2},
          {"recent_skips", {3, 5}},
          {"loss_count", 1},
          {"norm_count", 2},
          {"losses_f64_bits", {"3ff8000000000000"}},
          {"norms_f64_bits", {"4000000000000000", "0000000000000001"}}};
}

TEST(TrainerState, EveryMemberReachesItsPlace) {
  const TrainerState s = parse_trainer_state(good().dump(), "trainer.json");
  EXPECT_EQ(s.counters.step, 7);
  EXPECT_EQ(s.counters.samples, 28);
  EXPECT_EQ(s.counters.tokens, 896);
  EXPECT_EQ(s.counters.seconds, 1.5);
  EXPECT_EQ(s.optimizer_steps, 6);
  EXPECT_EQ(s.balancer_updates, 5);
  EXPECT_EQ(s.health.skipped, 4);
  EXPECT_EQ(s.health.non_finite, 3);
  EXPECT_EQ(s.health.consecutive, 2);
  EXPECT_EQ(s.health.recent_skips, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(s.health.loss_count, 1);
  EXPECT_EQ(s.health.norm_count, 2);
  EXPECT_EQ(s.health.losses, std::vector<double>{1.5});
  EXPECT_EQ(s.health.norms, (std::vector<double>{2.0, 0x1p-1074}));
}

void expect_refused(const nlohmann::ordered_json& json, const std::string& message) {
  try {
    parse_trainer_state(json.dump(), "trainer.json");
    FAIL() << json << " is accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_EQ(error.what(), "trainer.json: " + message);
  }
}

TEST(TrainerState, WhatNoSaveWritesIsRefused) {
  expect_refused(nlohmann::ordered_json::array(), "expected a JSON object");
  const nlohmann::ordered_json all = good();
  for (const auto& [key, value] : all.items()) {
    if (key == "seed") continue;  // the loader's state has it
    nlohmann::ordered_json json = all;
    json.erase(key);
    expect_refused(json, key + " is missing");
    json[key] = "x";
    const std::string expected = value.is_array()            ? "string; expected an array"
                                 : value.is_number_integer() ? "\"x\"; expected a whole number of "
                                                               "at least 0"
                                                             : "\"x\"; expected a number";
    expect_refused(json, key + " is " + expected);
    if (!value.is_number_integer()) continue;
    json[key] = -1;
    expect_refused(json, key + " is -1; expected a whole number of at least 0");
    json[key] = 1.5;
    expect_refused(json, key + " is 1.5; expected a whole number of at least 0");
    json[key] = 0;
    EXPECT_NO_THROW(parse_trainer_state(json.dump(), "trainer.json")) << key;
  }
  nlohmann::ordered_json json = all;
  json["recent_skips"] = {1, 2.5};
  expect_refused(json, "recent_skips holds 2.5; expected whole numbers");
  for (const char* bits : {"3ff800000000000", "3ff80000000000000", "3FF8000000000000",
                           "0x3ff80000000000", "3ff800000000000 "}) {
    json = all;
    json["norms_f64_bits"] = {bits};
    expect_refused(json,
                   std::string("norms_f64_bits holds \"") + bits + "\"; expected 16 hex digits");
  }
}

}  // namespace
}  // namespace ashlar::train
