// The quarantine of nodes, and the choice among those that are left.
#include "ashlar/launch/node_choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

TEST(ChooseNodes, KeepsThoseOfTheLastAttempt) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(choose_nodes({"d", "b", "a", "c"}, {}, 2), (Names{"a", "b"}));
  EXPECT_EQ(choose_nodes({"d", "a", "c"}, {"d", "b"}, 2), (Names{"a", "d"}));
  EXPECT_EQ(choose_nodes({"d", "a", "c"}, {"d", "c"}, 2), (Names{"c", "d"}));
  EXPECT_TRUE(choose_nodes({"d"}, {"d", "c"}, 2).empty());
}

Cause cause_of(FaultClass fault) {
  Cause cause;
  cause.fault = fault;
  cause.text = "what was seen";
  return cause;
}

TEST(Quarantine, LastsLongerEachTime) {
  constexpr double kHour_s = 3600;
  Quarantine quarantine;
  double now = 1e9;
  const auto expect_term = [&](double term_s) {
    const auto verdict = quarantine.count("v1", cause_of(FaultClass::kHardware), 100, now);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->until_s, term_s == 0 ? 0 : now + term_s);
    EXPECT_TRUE(quarantine.holds("v1", now));
    EXPECT_EQ(quarantine.holds("v1", now + 7 * kHour_s), term_s == 0);
    now += 7 * kHour_s;
  };
  expect_term(kHour_s);
  expect_term(6 * kHour_s);
  expect_term(0);
  EXPECT_FALSE(quarantine.holds("v2", now));
  const Json text = parse_json(quarantine.to_json().dump(), "text", ErrorKind::kCorrupt);
  const Quarantine read = Quarantine::from_json(text);
  EXPECT_TRUE(read.holds("v1", now));
  EXPECT_EQ(read.verdicts().at("v1").strikes, 3);
}

TEST(Quarantine, NeedsRepeatedFaultsAndNotTooManyNodes) {
  Quarantine quarantine;
  const Cause killed = cause_of(FaultClass::kKilled), crash = cause_of(FaultClass::kCrash);
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 0));
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 10));
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 4000)) << "the first two are over an hour old";
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 4010));
  EXPECT_TRUE(quarantine.count("v1", killed, 100, 4020));
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(quarantine.count("v2", crash, 100, 5000));
  EXPECT_FALSE(quarantine.count("", cause_of(FaultClass::kHardware), 100, 5000));
  int num_held = 0;
  for (int i = 0; i < 30; ++i)
    num_held +=
        quarantine.count("w" + std::to_string(i), cause_of(FaultClass::kHardware), 100, 6000 + i)
            .has_value();
  EXPECT_EQ(num_held, 10) << "a tenth of the nodes within ten minutes";
}

}  // namespace
}  // namespace ashlar::launch
