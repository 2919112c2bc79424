// The choice of forms by injected times, and tables that grow.
#include "ashlar/bench/machine/product_tuning.h"

#include <gtest/gtest.h>

#include <map>

#include "ashlar/core/rng.h"

namespace ashlar::bench {
namespace {

using kernels::ProductForm;
using kernels::ProductKey;

const ProductKey kKey{
    kernels::ProductPass::kForward, false, DType::kBF16, DType::kF32, 1, 512, 256, 2, 2048};

constexpr auto kEqualBits = [](const ProductForm&) { return true; };

// A machine on which forms take this part of the rules' 100 us, give or take noise.
class MadeUpTimes {
 public:
  explicit MadeUpTimes(double noise, uint64_t seed = 1) : noise_(noise), rng_(seed, "times") {}
  std::map<ProductForm, double> parts;  // 1 where absent
  double operator()(const ProductForm& form) {
    const auto found = parts.find(form);
    const double part = found == parts.end() ? 1 : found->second;
    return 100 * part * (1 + noise_ * (2 * rng_.uniform(calls_++) - 1));
  }

 private:
  double noise_;
  Rng rng_;
  uint64_t calls_ = 0;
};

TEST(ProductTuning, TheFastestFormWins) {
  MadeUpTimes times(0.01);
  times.parts[{.rows = 64, .panels = 8}] = 0.8;
  times.parts[{.rows = 128, .panels = 4}] = 0.9;
  const TunedForm tuned = choose_form(kKey, times, kEqualBits);
  EXPECT_EQ(tuned.form, (ProductForm{.rows = 64, .panels = 8}));
  EXPECT_NEAR(tuned.form_us / tuned.rule_us, 0.8, 0.03);
  EXPECT_FALSE(tuned.wrong_bits);
}

TEST(ProductTuning, AnOrderMayWinAlone) {
  MadeUpTimes times(0.01);
  const ProductForm form{0, 0, kernels::TaskOrder::kPanelsFirst, kernels::RowCopies::kByRule};
  times.parts[form] = 0.85;
  EXPECT_EQ(choose_form(kKey, times, kEqualBits).form, form);
}

TEST(ProductTuning, ASmallGainIsNotTaken) {
  MadeUpTimes times(0.005);
  for (const ProductForm& form : kernels::task_candidates(kKey)) times.parts[form] = 0.985;
  EXPECT_EQ(choose_form(kKey, times, kEqualBits).form, ProductForm{});
}

// A form that is fast only while forms are compared with each other, as by luck, falls through.
TEST(ProductTuning, TheSecondComparisonDecides) {
  const size_t first = 4 * kernels::task_candidates(kKey).size() +
                       4 * kernels::order_candidates(kKey, {.rows = 64}).size();
  size_t calls = 0;
  const auto lucky = [&](const ProductForm& form) {
    return form.rows == 64 && form.panels == 8 && ++calls < first / 16 ? 50.0 : 100.0;
  };
  size_t all = 0;
  const TunedForm tuned = choose_form(
      kKey, [&](const ProductForm& form) { return ++all, lucky(form); }, kEqualBits);
  EXPECT_EQ(tuned.form, ProductForm{});
  EXPECT_EQ(tuned.form_us, tuned.rule_us);
}

// Where no form is faster, tables stay within 2 % of the rules in 100 noisy measurements.
TEST(ProductTuning, NoTableIsSlowerThanTheRulesByMoreThanTwoPercent) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    MadeUpTimes times(0.1, seed);
    for (const ProductForm& form : kernels::task_candidates(kKey))
      times.parts[form] = 1 + 0.001 * form.panels;
    const TunedForm tuned = choose_form(kKey, times, kEqualBits);
    const auto found = times.parts.find(tuned.form);
    EXPECT_LE(found == times.parts.end() ? 1 : found->second, 1.02)
        << seed << ": " << tuned.form.text();
  }
}

TEST(ProductTuning, WrongBitsAreNeverTaken) {
  MadeUpTimes times(0.01);
  times.parts[{.rows = 64, .panels = 8}] = 0.5;
  const TunedForm tuned = choose_form(kKey, times, [](const ProductForm&) { return false; });
  EXPECT_EQ(tuned.form, ProductForm{});
  EXPECT_TRUE(tuned.wrong_bits);
}

TEST(ProductTuning, NewChoicesReplaceOldOnes) {
  machine::ProductChoice one{.op = "linear_forward", .dtype = "BF16", .result = "F32"};
  one.rows = 64;
  one.task_rows = 32;
  machine::ProductChoice two = one, rules = one;
  two.rows = 128;
  machine::ProductChoice better = one;
  better.task_rows = 96;
  const auto replaced = merged({one, two}, {better});
  ASSERT_EQ(replaced.size(), 2u);
  EXPECT_EQ(replaced[0].rows, 128);
  EXPECT_EQ(replaced[1].task_rows, 96);
  rules.task_rows = 0;
  const auto removed = merged({one, two}, {rules});
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].rows, 128);
}

}  // namespace
}  // namespace ashlar::bench
