// Draws against the formula: counts of many positions.
#include "ashlar/eval/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

constexpr int64_t kDraws = 20000;

std::vector<double> shares(const SamplingSpec& spec, const std::vector<float>& logits) {
  std::vector<std::pair<float, int32_t>> scratch;
  std::vector<double> share(logits.size());
  for (int64_t position = 0; position < kDraws; ++position)
    share[size_t(sample(spec, logits, position, scratch))] += 1.0 / double(kDraws);
  return share;
}

// Probabilities at temperature 1: 0.2, 0.5, 0.3.
const std::vector<float> kLogits{std::log(0.2f), std::log(0.5f), std::log(0.3f)};

TEST(Sampler, DrawsAreTheDistribution) {
  const struct {
    SamplingSpec spec;
    std::vector<double> wanted;
  } cases[] = {
      {{.temperature = 1}, {0.2, 0.5, 0.3}},
      {{.temperature = 0.5}, {0.04 / 0.38, 0.25 / 0.38, 0.09 / 0.38}},
      {{.temperature = 0.01}, {0, 1, 0}},
      {{.temperature = 1, .top_k = 2}, {0, 0.625, 0.375}},
      {{.temperature = 1, .top_k = 3}, {0.2, 0.5, 0.3}},
      {{.temperature = 1, .top_k = 9}, {0.2, 0.5, 0.3}},
      {{.temperature = 1, .top_p = 0.49}, {0, 1, 0}},
      {{.temperature = 1, .top_p = 0.51}, {0, 0.625, 0.375}},
      {{.temperature = 1, .top_p = 0.79}, {0, 0.625, 0.375}},
      {{.temperature = 1, .top_p = 0.81}, {0.2, 0.5, 0.3}},
      {{.temperature = 1, .top_p = 1}, {0.2, 0.5, 0.3}},
      // The first of the two that top_k leaves has 0.625 on its own.
      {{.temperature = 1, .top_k = 2, .top_p = 0.62}, {0, 1, 0}},
      {{.temperature = 1, .top_k = 2, .top_p = 0.63}, {0, 0.625, 0.375}},
      // The likeliest has 0.5: the others have 0.4 and 0.6 of it.
      {{.temperature = 1, .min_p = 0.39}, {0.2, 0.5, 0.3}},
      {{.temperature = 1, .min_p = 0.41}, {0, 0.625, 0.375}},
      {{.temperature = 1, .min_p = 0.61}, {0, 1, 0}},
      {{.temperature = 1, .min_p = 1}, {0, 1, 0}},
      {{.temperature = 1, .top_k = 2, .min_p = 0.1}, {0, 0.625, 0.375}},
      // At temperature 2 they have the square roots of that.
      {{.temperature = 2, .min_p = 0.7}, {0, 0.5635, 0.4365}},
  };
  for (const auto& c : cases) {
    const std::vector<double> found = shares(c.spec, kLogits);
    for (size_t id = 0; id < 3; ++id)
      EXPECT_NEAR(found[id], c.wanted[id], c.wanted[id] == 0 ? 0 : 0.015)
          << "temperature " << c.spec.temperature << " top_k " << c.spec.top_k << " top_p "
          << c.spec.top_p << " id " << id;
  }
}

TEST(Sampler, TiesGoToTheLowestId) {
  const std::vector<float> equal{1, 2, 2, 2};
  for (const SamplingSpec& spec :
       {SamplingSpec{.temperature = 0}, SamplingSpec{.temperature = 1, .top_k = 1},
        SamplingSpec{.temperature = 1, .top_p = 1e-9}})
    EXPECT_NEAR(shares(spec, equal)[1], 1, 1e-9) << spec.top_k;
  const std::vector<double> two = shares({.temperature = 1, .top_k = 2}, equal);
  EXPECT_EQ(two[3], 0);
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndPosition) {
  std::vector<std::pair<float, int32_t>> scratch;
  const auto draws = [&](uint64_t seed, int64_t first) {
    std::vector<int32_t> ids;
    for (int64_t position = first; position < first + 50; ++position)
      ids.push_back(sample({.temperature = 1, .seed = seed}, kLogits, position, scratch));
    return ids;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 50));
}

// As transformers 5.24 does it: every id once.
TEST(Sampler, PenaltyOfRepetitionsMovesIdsOfTheText) {
  const std::vector<float> logits{2, -2, 0, 3, 4};
  std::vector<float> scratch;
  const std::vector<int32_t> prompt{3, 1, 3};
  Repetition repetition(2.0, prompt);
  const auto found = [&] {
    const std::span<const float> row = repetition.penalized(logits, scratch);
    return std::vector<float>(row.begin(), row.end());
  };
  EXPECT_EQ(found(), (std::vector<float>{2, -4, 0, 1.5, 4}));
  for (const int32_t id : {2, 4, 4}) repetition.add(id);
  EXPECT_EQ(found(), (std::vector<float>{2, -4, 0, 1.5, 2}));
  Repetition none(1.0, prompt);
  none.add(4);
  EXPECT_EQ(none.penalized(logits, scratch).data(), logits.data());
}

TEST(Sampler, Refusals) {
  const double nan = std::nan(""), infinite = HUGE_VAL;
  for (const double temperature : {-1e-9, nan, infinite})
    EXPECT_THROW(validate({.temperature = temperature}), Error);
  for (const double top_p : {0.0, -0.1, 1.0000001, nan})
    EXPECT_THROW(validate({.top_p = top_p}), Error);
  EXPECT_THROW(validate({.top_k = -1}), Error);
  for (const double min_p : {-0.1, 1.1, nan}) EXPECT_THROW(validate({.min_p = min_p}), Error);
  for (const double penalty : {0.0, -1.0, nan, infinite})
    EXPECT_THROW(validate({.repetition_penalty = penalty}), Error);
  validate({.temperature = 1e-300, .top_k = INT64_MAX, .top_p = 1});
}

}  // namespace
}  // namespace ashlar::eval
