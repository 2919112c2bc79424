#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

// Counts of num_experts + 1 classes, of which the last is no expert.
std::vector<Output> run_balance(Place& p, int64_t num_experts, int64_t num_biases,
                                int64_t num_trained, bool centered, int64_t choices) {
  std::vector<int32_t> expert;
  const Rng rng(1, "experts");
  for (int64_t c = 0; c < choices; ++c)
    expert.push_back(int32_t(rng.below(uint64_t(c), uint64_t(num_experts + 1))));
  const RoutePlan plan{p.unset(DType::kI32, {num_experts + 1}), p.unset(DType::kI32, {choices}),
                       p.unset(DType::kI32, {choices, 1}), p.unset(DType::kI64, {num_experts + 1})};
  route_plan(p.context(), num_experts, p.ints(expert).view({choices, 1}), plan);
  const Shape X{num_biases};
  const BalanceUpdate x{.rates = {.lr = 0.01,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .eps = 1e-8,
                                  .correction1 = 1.0 - 0.9 * 0.9,
                                  .correction2 = 1.0 - 0.99 * 0.99},
                        .num_trained = num_trained,
                        .centered = centered,
                        .counts_E1 = plan.count_X,
                        .bias_X = p.random(p.stream(), "bias", X),
                        .first_X = p.random(p.stream(), "first", X),
                        .second_X = p.random(p.stream(), "second", X, 2)};
  balance_update(p.context(), x);
  return {{"bias", x.bias_X}, {"first", x.first_X}, {"second", x.second_X}};
}

struct BalanceShape {
  int64_t experts, biases, trained, choices;
};
// With and without a bias of the skip class, trained or not; more classes than threads; no choice.
constexpr BalanceShape kBalances[] = {{1, 1, 1, 3},       {4, 5, 4, 30},        {4, 5, 5, 30},
                                      {16, 16, 16, 2000}, {300, 300, 300, 900}, {5, 6, 5, 0}};

TEST(GpuBalance, HasTheBitsOfTheCpu) {
  for (const BalanceShape& s : kBalances)
    for (const bool centered : {false, true})
      expect_bits_of_cpu(
          fmt::format("{} of {} classes, centered {}", s.trained, s.biases, centered),
          [&](Place& p) {
            return run_balance(p, s.experts, s.biases, s.trained, centered, s.choices);
          },
          {DType::kF32, DType::kF32});
}

// The checksum is that of every device.
TEST(GpuBalance, MatchesTheReferenceInEveryMode) {
  expect_op("balance_update/16", {DType::kF32, DType::kF32},
            [&](Place& p) { return run_balance(p, 16, 17, 16, true, 2000); });
}

}  // namespace
}  // namespace ashlar::kernels
