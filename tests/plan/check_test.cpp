// plan check: its errors are the trainer's refusals, in the trainer's words.
#include "ashlar/plan/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/read_recipe.h"
#include "tests/plan/small_machine.h"
#include "tests/support/errors.h"

namespace ashlar::plan {
namespace {

const char* kTiny = ASHLAR_FIXTURES "/recipes/tiny.toml";

// The message with which a dry run of the first and the last rank refuses, or "".
std::string refusal(const std::vector<std::string>& keys, int64_t ranks) {
  try {
    const auto files = posix_files();
    const Recipe recipe = train::read_recipe(*files, kTiny, keys);
    for (const int rank : {0, int(ranks) - 1})
      train::plan_run(recipe, DType::kF32, int(ranks), 1, rank);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
}

TEST(Check, AnErrorIsWhatTheTrainerRefuses) {
  const auto files = posix_files();
  uint64_t state = 38;
  const auto dice = [&](std::initializer_list<const char*> list) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return std::string(*(list.begin() + int64_t((state >> 33) % list.size())));
  };
  int refused = 0, accepted = 0;
  for (int i = 0; i < 80; ++i) {
    std::vector<std::string> keys = {"parallel.tp=" + dice({"1", "1", "2", "3", "4"}),
                                     "parallel.cp=" + dice({"1", "1", "2", "3"}),
                                     "parallel.pp=" + dice({"1", "1", "2", "3", "5"}),
                                     "parallel.ep=" + dice({"1", "1", "2", "3"}),
                                     "parallel.tsp=" + dice({"1", "1", "1", "2"}),
                                     "parallel.zero=" + dice({"0", "1", "2", "3"}),
                                     "parallel.schedule=" + dice({"1f1b", "gpipe", "zb"}),
                                     "train.recompute=" + dice({"false", "true"}),
                                     "train.micro_batch=" + dice({"1", "2", "3"}),
                                     "train.global_batch=" + dice({"4", "6", "12"})};
    const int64_t ranks = std::stoll(dice({"1", "2", "3", "4", "6", "8"}));
    const std::string problem = refusal(keys, ranks);
    const Check checked = check(*files, kTiny, keys, ranks, nullptr);
    EXPECT_EQ(checked.has_error(), !problem.empty()) << fmt::format("{}", fmt::join(keys, " "));
    if (problem.empty()) {
      ++accepted;
    } else {
      ++refused;
      EXPECT_EQ(checked.findings.at(0).text, problem);
    }
  }
  EXPECT_GT(refused, 10);
  EXPECT_GE(accepted, 5);
}

TEST(Check, R4IsTheTrainersRuleOfHeads) {
  const auto files = posix_files();
  const Check checked = check(*files, kTiny, {"parallel.tp=3"}, 3, nullptr);
  ASSERT_EQ(checked.findings.size(), 1);
  EXPECT_EQ(checked.findings[0].rule, "R4");
  EXPECT_TRUE(checked.has_error());
  EXPECT_FALSE(check(*files, kTiny, {"parallel.tp=2"}, 2, nullptr).has_error());
}

TEST(Check, SaysWhatItChecked) {
  const auto files = posix_files();
  const MachineFile machine = read_machine(*files, "mi300x-pollara");
  const std::string path = ASHLAR_FIXTURES "/../../recipes/zaya1-8b.toml";
  const Check checked = check(*files, path, {"parallel.tp=2"}, 8, &machine);
  EXPECT_FALSE(checked.has_error());
  const std::string text = describe(checked, &machine);
  EXPECT_NE(text.find("R13    warning"), std::string::npos) << text;
  EXPECT_NE(text.find("choose parallel.tp=1 or parallel.tp=8"), std::string::npos) << text;
  EXPECT_NE(text.find("fingerprint"), std::string::npos);
  const Json json = parse_json(to_json(checked, &machine), "check", ErrorKind::kData);
  EXPECT_TRUE(json["legal"].get<bool>());
  EXPECT_EQ(json["findings"].size(), checked.findings.size());
  EXPECT_EQ(json["fingerprint"], machine.profile.fingerprint());
}

}  // namespace
}  // namespace ashlar::plan
