#include "ashlar/kernels/balance.h"

#include <cmath>

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

constexpr BalanceRates kRates = {.lr = 0.01,
                                 .beta1 = 0.9,
                                 .beta2 = 0.99,
                                 .eps = 1e-8,
                                 .correction1 = 1.0 - 0.9 * 0.9,
                                 .correction2 = 1.0 - 0.99 * 0.99};
constexpr int64_t kCounts[] = {7, 0, 12, 5, 6};
constexpr int64_t kClasses = 5;

BalanceUpdate update_of(Bench& bench, int64_t num_trained, bool centered) {
  BalanceUpdate x{.rates = kRates,
                  .num_trained = num_trained,
                  .centered = centered,
                  .counts_E1 = bench.zeros(DType::kI64, {kClasses}),
                  .bias_X = bench.stream("bias", {kClasses}),
                  .first_X = bench.stream("first", {kClasses}),
                  .second_X = bench.stream("second", {kClasses}, 2.0)};
  if (!bench.context().meta())
    std::copy(std::begin(kCounts), std::end(kCounts), x.counts_E1.as<int64_t>());
  return x;
}

TEST(BalanceUpdate, IsAdamWOnTheLoadThenTheMean) {
  for (const DType dtype : {DType::kF64, DType::kF32})
    for (const auto& [trained, centered] : {std::pair{4, true}, {4, false}, {5, false}}) {
      Bench bench({dtype, dtype});
      const BalanceUpdate x = update_of(bench, trained, centered);
      std::vector<double> b = values_of(x.bias_X), m = values_of(x.first_X),
                          v = values_of(x.second_X);
      double mean = 0.0;
      for (size_t e = 0; e < size_t(trained); ++e) {
        const double g = double(kCounts[e]) / 30.0 - 1.0 / trained;
        m[e] = 0.9 * m[e] + 0.1 * g;
        v[e] = 0.99 * v[e] + 0.01 * g * g;
        b[e] -= 0.01 * (m[e] / 0.19) / (std::sqrt(v[e] / 0.0199) + 1e-8);
        mean += b[e] / trained;
      }
      if (centered)
        for (size_t e = 0; e < size_t(trained); ++e) b[e] -= mean;
      balance_update(bench.context(), x);
      const double tolerance = dtype == DType::kF64 ? 1e-15 : 2e-7;
      for (size_t e = 0; e < size_t(kClasses); ++e) {
        EXPECT_NEAR(values_of(x.bias_X)[e], b[e], tolerance) << e;
        EXPECT_NEAR(values_of(x.first_X)[e], m[e], tolerance) << e;
        EXPECT_NEAR(values_of(x.second_X)[e], v[e], 2 * tolerance) << e;
      }
    }
}

TEST(BalanceUpdate, WithoutChoicesNothingChanges) {
  Bench bench;
  const BalanceUpdate x = update_of(bench, 4, true);
  fill_zero(x.counts_E1);
  const std::vector<double> b = values_of(x.bias_X), m = values_of(x.first_X);
  balance_update(bench.context(), x);
  EXPECT_EQ(values_of(x.bias_X), b);
  EXPECT_EQ(values_of(x.first_X), m);
}

TEST(BalanceUpdate, RecordsItselfAndRefusesWhatDoesNotFit) {
  Bench meta({DType::kF32, DType::kF32}, true, 1, Device::kMeta);
  balance_update(meta.context(), update_of(meta, 4, true));
  ASSERT_EQ(meta.calls().size(), 1u);
  EXPECT_EQ(meta.calls()[0].op, "balance_update");
  EXPECT_EQ(meta.calls()[0].cost.bytes, 5 * 8 + 6 * 5 * 4);
  EXPECT_DEATH(balance_update(meta.context(), update_of(meta, 6, true)), "num_trained");
}

}  // namespace
}  // namespace ashlar::kernels
