// trainer.json of a checkpoint is read strictly: what no save writes is told of by its key.
#include "ashlar/train/trainer_state.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

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
  EXPECT_EQ(s.seed, 1u);
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

TEST(TrainerState, IsWrittenAsItIsRead) {
  nlohmann::ordered_json harmed = good();
  harmed["harmful_samples"] = {3, 8};
  EXPECT_EQ(parse_trainer_state(harmed.dump(), "t").health.harmful, (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(to_json(parse_trainer_state(harmed.dump(), "t")), harmed.dump(1));
  EXPECT_EQ(to_json(parse_trainer_state(good().dump(), "trainer.json")), good().dump(1));
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

// Each member in turn left out, of another type, and outside its range.
TEST(TrainerState, WhatNoSaveWritesIsRefused) {
  expect_refused(nlohmann::ordered_json::array(), "found []; expected an object");
  const nlohmann::ordered_json all = good();
  for (const auto& [key, value] : all.items()) {
    nlohmann::ordered_json json = all;
    json.erase(key);
    expect_refused(json, "key '" + key + "' is missing");
    json[key] = "x";
    const std::string whole = "; expected an integer from 0 to ";
    const bool part = key == "skipped" || key == "non_finite" || key == "consecutive_skips";
    const std::string most = key == "skipped" ? "7" : part ? "4" : "2^63-1";
    expect_refused(json, key + " is \"x\"" +
                             (value.is_array()            ? "; expected a list"
                              : value.is_number_integer() ? whole + most
                                                          : "; expected a number"));
    if (!value.is_number_integer()) continue;
    json[key] = -1;
    expect_refused(json, key + " is -1" + whole + most);
    json[key] = 1.5;
    expect_refused(json, key + " is 1.5" + whole + most);
    json[key] = uint64_t{1} << 63;
    expect_refused(json, key + " is 9223372036854775808" + whole + most);
  }
  nlohmann::ordered_json json = all;
  json["seconds"] = -0.5;
  expect_refused(json, "seconds is -0.5; expected a number of at least 0");
  json = all;
  json["epoch"] = 1;
  EXPECT_THROW(parse_trainer_state(json.dump(), "trainer.json"), Error);
}

TEST(TrainerState, SpikesInARowOfOlderVersionsAreNotCountedAsNotFinite) {
  nlohmann::ordered_json json = good();
  json["consecutive_skips"] = 4;
  EXPECT_EQ(parse_trainer_state(json.dump(), "trainer.json").health.consecutive, 3);
}

TEST(TrainerState, SkipsAreStepsOfTheRun) {
  nlohmann::ordered_json json = good();
  for (const auto& [key, value, most] :
       {std::tuple("skipped", 8, 7), {"non_finite", 5, 4}, {"consecutive_skips", 5, 4}}) {
    json = good();
    json[key] = value;
    expect_refused(json,
                   fmt::format("{} is {}; expected an integer from 0 to {}", key, value, most));
  }
  json = good();
  json["recent_skips"] = {1, 2.5};
  expect_refused(json, "recent_skips holds 2.5; expected an integer from 0 to 2^63-1");
  const std::string ascending = "; expected ascending steps from 1 to 7";
  json["recent_skips"] = {0};
  expect_refused(json, "recent_skips holds 0 after 0" + ascending);
  json["recent_skips"] = {3, 3};
  expect_refused(json, "recent_skips holds 3 after 3" + ascending);
  json["recent_skips"] = {3, 8};
  expect_refused(json, "recent_skips holds 8 after 3" + ascending);
}

TEST(TrainerState, WindowsHoldFiniteValuesThatWereCounted) {
  nlohmann::ordered_json json;
  for (const char* bits : {"3ff800000000000", "3ff80000000000000", "3FF8000000000000",
                           "0x3ff80000000000", "3ff800000000000 "}) {
    json = good();
    json["norms_f64_bits"] = {bits};
    expect_refused(
        json, fmt::format("norms_f64_bits holds \"{}\"; expected 16 lower-case hex digits", bits));
  }
  for (const char* bits : {"7ff0000000000000", "7ff8000000000000"}) {
    json = good();
    json["losses_f64_bits"] = {bits};
    expect_refused(json, "losses_f64_bits holds a value that is not finite");
  }
  json = good();
  json["norm_count"] = 1;
  expect_refused(json, "norms_f64_bits has 2 values, but norm_count is 1; expected 1 to 1");
  json = good();
  json["losses_f64_bits"] = nlohmann::ordered_json::array();
  expect_refused(json, "losses_f64_bits has 0 values, but loss_count is 1; expected 1 to 1");
  json["loss_count"] = 0;
  EXPECT_NO_THROW(parse_trainer_state(json.dump(), "trainer.json"));
}

}  // namespace
}  // namespace ashlar::train
