// R1 to R16: each rule fires where its formula is broken, and its choices keep it.
#include "ashlar/sizing/rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ashlar/core/text.h"

namespace ashlar::sizing {
namespace {

machine::Profile shipped(const char* name) {
  return machine::parse_profile(machine::shipped_text(name), name);
}

machine::Profile cpus() {
  machine::Profile profile;
  profile.name = "cpus";
  profile.set("node.cores", {2, "1", machine::Origin::kMeasured, "", "", 0});
  return profile;
}

// A recipe of which nothing is wrong on an MI300X, with keys over it.
RuleInput input_of(const std::vector<std::string>& keys, int64_t ranks,
                   const machine::Profile* machine, const std::string& recipe = "zaya1-8b") {
  RuleInput input;
  input.recipe =
      load_recipe(std::string(ASHLAR_FIXTURES) + "/../../recipes/" + recipe + ".toml", keys);
  input.parallel = resolve_parallel(input.recipe, ranks);
  input.machine = machine;
  return input;
}

// The findings of one rule about that key or word.
std::vector<RuleFinding> of_rule(const RuleInput& input, const std::string& rule,
                                 const std::string& about) {
  std::vector<RuleFinding> list;
  for (const RuleFinding& finding : findings_of(input))
    if (finding.rule == rule && finding.text.find(about) != std::string::npos)
      list.push_back(finding);
  return list;
}

// The rule fires, proposes as many values, and is silent with each of them.
void expect_rule(const std::string& rule, const std::string& about,
                 const std::vector<std::string>& keys, int64_t ranks,
                 const machine::Profile* machine, size_t num_choices,
                 const std::string& recipe = "zaya1-8b") {
  const std::vector<RuleFinding> found =
      of_rule(input_of(keys, ranks, machine, recipe), rule, about);
  ASSERT_FALSE(found.empty()) << rule;
  ASSERT_EQ(found[0].choices.size(), num_choices) << found[0].text;
  for (const std::string& choice : found[0].choices) {
    std::vector<std::string> changed = keys;
    for (const std::string& key : split(choice, ' ')) changed.push_back(key);
    EXPECT_TRUE(of_rule(input_of(changed, ranks, machine, recipe), rule, about).empty())
        << rule << " with " << choice;
  }
}

TEST(Rules, R1) {
  expect_rule("R1", "vocab_size", {"model.vocab_size=262200"}, 1, nullptr, 2);
  EXPECT_TRUE(of_rule(input_of({}, 1, nullptr), "R1", "").empty());
}

TEST(Rules, R2) {
  const machine::Profile mi300x = shipped("mi300x-pollara");
  const auto found = of_rule(input_of({}, 128, &mi300x), "R2", "micro_batch");
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].severity, Severity::kInfo);
  EXPECT_EQ(found[0].choices[0], "train.micro_batch=2");
  // No larger one fits where a step has one sequence a rank.
  EXPECT_TRUE(of_rule(input_of({"train.global_batch=1024"}, 1024, &mi300x), "R2", "").empty());
}

TEST(Rules, R3) {
  expect_rule("R3", "sequence_length", {"data.sequence_length=1000"}, 1, nullptr, 2);
  expect_rule("R3", "hidden_size", {"model.hidden_size=2080"}, 1, nullptr, 2);
}

TEST(Rules, R5) {
  const machine::Profile mi300x = shipped("mi300x-pollara");
  expect_rule("R5", "parallel.tp", {"parallel.tp=2"}, 8, &mi300x, 1);
}

TEST(Rules, R6) {
  expect_rule("R6", "num_hidden_layers", {"parallel.pp=3", "train.global_batch=12"}, 12, nullptr,
              2);
}

TEST(Rules, R7) {
  expect_rule("R7", "head_dim", {"model.head_dim=64"}, 1, nullptr, 1);
}

TEST(Rules, R8) {
  expect_rule("R8", "moe_intermediate_size", {"model.moe_intermediate_size=2730"}, 1, nullptr, 2);
}

TEST(Rules, R9) {
  expect_rule("R9", "head_dim", {"model.head_dim=80"}, 1, nullptr, 2);
}

TEST(Rules, R10) {
  const machine::Profile mi300x = shipped("mi300x-pollara");
  expect_rule("R10", "moe_intermediate_size", {"model.moe_intermediate_size=1984"}, 1, &mi300x, 2);
  // Elsewhere multiples of 64 are enough.
  EXPECT_TRUE(
      of_rule(input_of({"model.moe_intermediate_size=1984"}, 1, nullptr), "R10", "").empty());
}

TEST(Rules, R11) {
  const machine::Profile mi300x = shipped("mi300x-pollara");
  const auto found = of_rule(input_of({}, 8, &mi300x), "R11", "200 GFLOP");
  ASSERT_EQ(found.size(), 1);
  EXPECT_NE(found[0].text.find("queries, keys, values 25.8"), std::string::npos) << found[0].text;
  expect_rule("R11", "200 GFLOP", {}, 8, &mi300x, 1);
}

TEST(Rules, R12) {
  const machine::Profile h100 = shipped("h100");
  expect_rule("R12", "experts", {"model.moe_intermediate_size=160"}, 1, &h100, 2);
}

TEST(Rules, R13) {
  const machine::Profile mi300x = shipped("mi300x-pollara"), h100 = shipped("h100");
  expect_rule("R13", "parallel.tp", {"parallel.tp=2"}, 8, &mi300x, 2);
  EXPECT_TRUE(of_rule(input_of({"parallel.tp=2"}, 8, &h100), "R13", "").empty());
  EXPECT_TRUE(of_rule(input_of({"parallel.ep=8"}, 8, &mi300x), "R13", "").empty());
}

TEST(Rules, R14) {
  const machine::Profile mi300x = shipped("mi300x-pollara");
  expect_rule("R14", "rows an expert", {}, 8, &mi300x, 1);
}

TEST(Rules, R15) {
  const machine::Profile mi300x = shipped("mi300x-pollara");
  const auto found = of_rule(input_of({}, 8, &mi300x), "R15", "queries");
  ASSERT_EQ(found.size(), 1);
  EXPECT_NE(found[0].text.find("192 tiles of 256 x 128 on 304 units take 1 waves, 63 % full"),
            std::string::npos)
      << found[0].text;
  expect_rule("R15", "queries", {}, 8, &mi300x, 1);
}

TEST(Rules, R16) {
  const machine::Profile machine = cpus();
  expect_rule("R16", "experts, down", {"model.moe_intermediate_size=1000"}, 1, &machine, 2);
  const machine::Profile h100 = shipped("h100");
  EXPECT_TRUE(of_rule(input_of({"model.moe_intermediate_size=1000"}, 1, &h100), "R16", "").empty());
}

}  // namespace
}  // namespace ashlar::sizing
