// Pairs of answers against formulas worked out by hand.
#include "ashlar/eval/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

JudgedFile file_with(const std::vector<double>& values, const std::string& metric = "acc") {
  JudgedTask judged{.task = "arc", .rows = {}, .results = {}};
  for (size_t i = 0; i < values.size(); ++i)
    judged.rows.push_back({.key = "k" + std::to_string(i),
                           .metrics = {{metric, values[i]}},
                           .logprobs = {-1.5},
                           .text = {}});
  return parse_judged(lines_of(judged, "m"), "f");
}

TEST(Compare, DifferencesOfPairs) {
  const std::vector<Comparison> found =
      compare(file_with({1.0, 2.0, 4.0}, "loss"), file_with({1.5, 2.0, 3.0}, "loss"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].metric, "loss");
  EXPECT_NEAR(found[0].a, 7.0 / 3, 1e-12);
  EXPECT_NEAR(found[0].b, 6.5 / 3, 1e-12);
  // Differences 0.5, 0, -1: mean -1/6, variance (4/9 + 1/36 + 25/36) / 2 = 7/12.
  EXPECT_NEAR(found[0].difference, -1.0 / 6, 1e-12);
  EXPECT_NEAR(found[0].error, std::sqrt(7.0 / 12 / 3), 1e-12);
  EXPECT_NEAR(found[0].high() - found[0].low(), 2 * 1.959964 * found[0].error, 1e-12);
  EXPECT_FALSE(found[0].counts);
}

// A last window of few tokens counts by them: the means are those over tokens.
TEST(Compare, WindowsCountByTheirTokens) {
  const auto file = [](double first, double second) {
    JudgedTask judged{.task = "text", .rows = {}, .results = {}};
    judged.rows.push_back(
        {.key = "k0", .metrics = {{"loss", first}}, .logprobs = {}, .text = {}, .num_scored = 9});
    judged.rows.push_back(
        {.key = "k1", .metrics = {{"loss", second}}, .logprobs = {}, .text = {}, .num_scored = 1});
    return parse_judged(lines_of(judged, "m"), "f");
  };
  const Comparison found = compare(file(1.0, 2.0), file(1.5, 4.0))[0];
  EXPECT_NEAR(found.a, 1.1, 1e-12);
  EXPECT_NEAR(found.b, 1.75, 1e-12);
  EXPECT_NEAR(found.difference, 0.65, 1e-12);
  // Residuals 9 (0.5 - 0.65) and 1 (2 - 0.65) over 10 tokens, in squares, times 2 / (2 - 1).
  EXPECT_NEAR(found.error, std::sqrt(2 * (1.35 * 1.35 + 1.35 * 1.35)) / 10, 1e-12);
}

TEST(Compare, SignTestOfRightAndWrong) {
  // One pair that the first alone has right, four that the second has: 2 (1 + 5) / 2^5.
  const Comparison found =
      compare(file_with({1, 0, 0, 0, 0, 1, 0}), file_with({0, 1, 1, 1, 1, 1, 0}))[0];
  EXPECT_TRUE(found.counts);
  EXPECT_EQ(found.only_a, 1);
  EXPECT_EQ(found.only_b, 4);
  EXPECT_NEAR(found.p, 12.0 / 32, 1e-12);
  EXPECT_NEAR(found.difference, 3.0 / 7, 1e-12);
  const Comparison same = compare(file_with({1, 0}), file_with({1, 0}))[0];
  EXPECT_EQ(same.p, 1);
  EXPECT_EQ(same.error, 0);
}

TEST(Compare, OtherQuestionsAreRefused) {
  const auto fault = [](const JudgedFile& a, const JudgedFile& b) {
    return message_of(ErrorKind::kConfig, [&] { compare(a, b); });
  };
  EXPECT_NE(fault(file_with({1, 0}), file_with({1, 0, 1})).find("2 answers"), std::string::npos);
  JudgedFile other = file_with({1, 0});
  other.rows[1].key = "x";
  EXPECT_NE(fault(file_with({1, 0}), other).find("question 2 of f is another"), std::string::npos);
  other = file_with({1, 0});
  other.task = "mmlu";
  EXPECT_NE(fault(file_with({1, 0}), other).find("expected one task"), std::string::npos);
  EXPECT_NE(fault(file_with({1}), file_with({1})).find("at least 2"), std::string::npos);
  EXPECT_NE(message_of(ErrorKind::kData, [] { parse_judged("{}", "f"); }).find("f line 1"),
            std::string::npos);
  EXPECT_NE(
      message_of(ErrorKind::kData, [] { parse_judged("{\"model\":\"m\",\"task\":\"t\"}\n", "f"); })
          .find("it holds no rows"),
      std::string::npos);
}

}  // namespace
}  // namespace ashlar::eval
