#include "ashlar/machine/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ashlar::machine {
namespace {

Measured measured(double value) {
  Measured m;
  m.name = "all_reduce 64 MiB on 8 ranks";
  m.value = value;
  m.unit = "GB/s";
  return m;
}
const Expected kExpected{100, "measured 2026-11-26"};

TEST(Verdicts, Bands) {
  const std::pair<double, Verdict> cases[] = {
      {120, Verdict::kAboveModel}, {105, Verdict::kGood},  {95, Verdict::kGood},
      {94.9, Verdict::kNormal},    {85, Verdict::kNormal}, {84.9, Verdict::kLow},
      {70, Verdict::kLow},         {69.9, Verdict::kBad},  {1, Verdict::kBad}};
  for (const auto& [value, verdict] : cases)
    EXPECT_EQ(judge(measured(value), kExpected).verdict, verdict) << value;
}

TEST(Verdicts, TimesAreBetterWhenSmaller) {
  Measured m = measured(50);
  m.larger_is_better = false;
  EXPECT_EQ(judge(m, kExpected).verdict, Verdict::kAboveModel);
  m.value = 150;
  EXPECT_EQ(judge(m, kExpected).verdict, Verdict::kBad);
  EXPECT_NEAR(*judge(m, kExpected).ratio, 2.0 / 3, 1e-12);
}

TEST(Verdicts, WhatMakesANumberMeaninglessComesFirst) {
  Measured m = measured(10);
  m.cv = 0.3;
  EXPECT_EQ(judge(m, kExpected).verdict, Verdict::kUnstable);
  m.foreign_share = 0.5;
  m.neighbour = "stress-ng (pid 4242)";
  const Judgement disturbed = judge(m, kExpected);
  EXPECT_EQ(disturbed.verdict, Verdict::kDisturbed);
  EXPECT_NE(disturbed.hint.find("stress-ng (pid 4242)"), std::string::npos);
  m.num_wrong = 3;
  EXPECT_EQ(judge(m, kExpected).verdict, Verdict::kWrongData);
}

TEST(Verdicts, EveryOtherThanNormalHasAHint) {
  for (const double value : {120.0, 75.0, 10.0})
    for (const Subject subject : {Subject::kCollective, Subject::kProduct, Subject::kMemory,
                                  Subject::kStorage, Subject::kLaunch}) {
      Measured m = measured(value);
      m.subject = subject;
      EXPECT_NE(judge(m, kExpected).hint, "");
    }
  EXPECT_EQ(judge(measured(100), kExpected).hint, "");
  EXPECT_EQ(judge(measured(100), std::nullopt).verdict, Verdict::kUnknown);
  Measured slow = measured(50);
  slow.cause = "rank 3 of host n07 takes 2.1 times the median";
  EXPECT_EQ(judge(slow, kExpected).hint, slow.cause);
}

TEST(Verdicts, ExitCodes) {
  EXPECT_EQ(exit_code(Verdict::kGood, true), 0);
  EXPECT_EQ(exit_code(Verdict::kLow, false), 0);
  EXPECT_EQ(exit_code(Verdict::kLow, true), 3);
  EXPECT_EQ(exit_code(Verdict::kBad, false), 4);
  EXPECT_EQ(exit_code(Verdict::kWrongData, false), 5);
  EXPECT_EQ(exit_code(Verdict::kTimedOut, false), 6);
  EXPECT_EQ(exit_code(Verdict::kDisturbed, false), 7);
}

// Without a baseline the median of the fleet is it.
TEST(Verdicts, FleetNamesTheSlowNode) {
  std::vector<Measured> nodes(8, measured(100));
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].name = "node " + std::to_string(i);
    nodes[i].value += double(i) * 0.3;
  }
  nodes[5].value = 60;
  const auto judgements = judge_fleet(nodes);
  for (size_t i = 0; i < nodes.size(); ++i)
    EXPECT_EQ(judgements[i].verdict, i == 5 ? Verdict::kBad : Verdict::kGood) << i;
  EXPECT_EQ(worst_of(judgements), Verdict::kBad);
  EXPECT_EQ(judge_fleet(std::vector<Measured>(2, measured(100)))[0].verdict, Verdict::kUnknown);
}

// A verdict is a function of the rows, not of their order: 100 shuffled fleets, one answer.
TEST(Verdicts, W4ShuffledRowsGiveOneAnswer) {
  std::vector<Measured> nodes;
  for (int i = 0; i < 9; ++i) {
    nodes.push_back(measured(100 + i % 4 * 4 - (i == 3 ? 40 : 0)));
    nodes.back().name = "node " + std::to_string(i);
  }
  const auto sorted = [](std::vector<Judgement> judgements) {
    std::sort(judgements.begin(), judgements.end(),
              [](const Judgement& a, const Judgement& b) { return a.name < b.name; });
    std::string text;
    for (const Judgement& j : judgements)
      text += j.name + " " + std::string(to_string(j.verdict)) + " " + j.expected + "\n";
    return text;
  };
  const std::string first = sorted(judge_fleet(nodes));
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::shuffle(nodes.begin(), nodes.end(), std::mt19937(seed));
    EXPECT_EQ(sorted(judge_fleet(nodes)), first);
  }
}

}  // namespace
}  // namespace ashlar::machine
