#include <cmath>

#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

// Scores of each kind with weights of each kind, as in tests/kernels/topk_test.cpp.
constexpr TopkRule kTopkRules[] = {{.choose_by_logits = false, .renormalize = false, .scale = 1.0},
                                   {.choose_by_logits = false, .renormalize = true, .scale = 1.0},
                                   {.choose_by_logits = true, .renormalize = false, .scale = 2.5},
                                   {.choose_by_logits = true, .renormalize = true, .scale = 0.5}};

struct RouterShape {
  int64_t T, E, k, B;  // B rows of tokens
};
// One class to more than a lane has at once, all classes chosen, tokens that end within a block.
constexpr RouterShape kRouters[] = {{1, 1, 1, 1},   {3, 6, 2, 3},   {66, 17, 3, 2},
                                    {20, 64, 8, 1}, {4, 33, 33, 2}, {5, 300, 40, 1}};

// more: with a bias and both losses.
std::vector<Output> run_topk(Place& p, const RouterShape& s, const TopkRule& rule, bool more) {
  const Shape TE{s.T, s.E}, Tk{s.T, s.k};
  const Tensor logits = p.random(p.stream(), "logits", TE);
  const Tensor bias = more ? p.random(p.stream(), "bias", {s.E}) : Tensor();
  const Tensor probabilities = p.unset(p.stream(), TE), lse = p.unset(p.stream(), {s.T});
  const Tensor expert = p.unset(DType::kI32, Tk), weight = p.unset(p.stream(), Tk);
  topk_forward(p.context(), {.rule = rule,
                             .logits_TE = logits,
                             .bias_E = bias,
                             .p_TE = probabilities,
                             .lse_T = lse,
                             .expert_Tk = expert,
                             .weight_Tk = weight});
  if (s.T > 3)  // a row may have no token but padding
    leave_out_padding(p.context(),
                      Sequence({{0, 1, 0, 0}, {1, 2, 0, 1, true}, {3, s.T - 3, 0, 2, s.T == 4}}),
                      expert);
  const Tensor loads = more ? p.unset(p.stream(), {s.B, s.E}) : Tensor();
  if (more) row_loads(p.context(), expert, loads);
  const Tensor dlogits = p.unset(p.product(), TE), sums = p.random(p.stream(), "losses", {2});
  topk_backward(p.context(), {.rule = rule,
                              .dweight_Tk = p.random(p.stream(), "dweight", Tk),
                              .p_TE = probabilities,
                              .lse_T = lse,
                              .expert_Tk = expert,
                              .weight_Tk = weight,
                              .loads_BE = loads,
                              .balance_scale = more ? 0.01 : 0,
                              .z_scale = more ? 0.02 : 0,
                              .dlogits_TE = dlogits,
                              .losses_2 = sums});
  std::vector<Output> outputs = {{"p", probabilities}, {"lse", lse},         {"expert", expert},
                                 {"weight", weight},   {"dlogits", dlogits}, {"losses", sums}};
  if (more) outputs.push_back({"loads", loads});
  return outputs;
}

std::string name_of_router(const RouterShape& s, const TopkRule& rule) {
  return fmt::format("topk/{}x{}of{}/{}{}", s.T, s.k, s.E, rule.choose_by_logits ? "logits" : "p",
                     rule.renormalize ? "/renormalized" : "");
}

TEST(GpuTopk, MatchesTheReferenceInEveryMode) {
  for (const RouterShape& s : kRouters)
    for (const TopkRule& rule : kTopkRules)
      for (const bool more : {false, true})
        expect_op(name_of_router(s, rule) + (more ? "/more" : ""),
                  {DType::kF32, more ? DType::kBF16 : DType::kF32},
                  [&](Place& p) { return run_topk(p, s, rule, more); });
}

TEST(GpuTopk, OfNoTokenLeavesLossesAlone) {
  for (const bool more : {false, true})
    expect_op(fmt::format("topk/none{}", more ? "/more" : ""), {DType::kF32, DType::kF32},
              [&](Place& p) {
                return run_topk(p, {0, 5, 2, 1}, {}, more);
              });
}

// Choices and weights of rows of logits.
struct ChosenRows {
  std::vector<int32_t> expert;
  std::vector<double> weight;
};
ChosenRows choose_two(const std::vector<double>& logits, int64_t E,
                      const std::vector<double>& bias) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const int64_t T = int64_t(logits.size()) / E;
  const Tensor in = p.zeros(DType::kF32, {T, E});
  const Tensor of_classes = bias.empty() ? Tensor() : p.zeros(DType::kF32, {E});
  upload(p.context(), logits, in);
  if (of_classes) upload(p.context(), bias, of_classes);
  const Tensor expert = p.unset(DType::kI32, {T, 2}), weight = p.unset(DType::kF32, {T, 2});
  topk_forward(p.context(), {.rule = {},
                             .logits_TE = in,
                             .bias_E = of_classes,
                             .p_TE = p.unset(DType::kF32, {T, E}),
                             .lse_T = p.unset(DType::kF32, {T}),
                             .expert_Tk = expert,
                             .weight_Tk = weight});
  ChosenRows chosen{std::vector<int32_t>(size_t(2 * T)), std::vector<double>(size_t(2 * T))};
  download(p.context(), expert, chosen.expert);
  download(p.context(), weight, chosen.weight);
  return chosen;
}

TEST(GpuTopk, TiesGoToTheLowestIndices) {
  const ChosenRows chosen =
      choose_two({1, 1, 1, 1, 1, 1, 0, 3, 2, 2, 2, 0, 0, 1, 5, 1, 5, 5}, 6, {});
  EXPECT_EQ(chosen.expert, (std::vector<int32_t>{0, 1, 1, 2, 2, 4}));
  // In different lanes, and twice in one lane.
  std::vector<double> many(100, 0.0);
  for (const size_t e : {97, 65, 33, 40}) many[e] = 2;
  EXPECT_EQ(choose_two(many, 100, {}).expert, (std::vector<int32_t>{33, 40}));
}

// Probabilities that are 0 in fp32 still have weights that add up to 1; logits that are no numbers
// choose different experts.
TEST(GpuTopk, FarFromZeroAndNotANumber) {
  const double nan = std::nan("");
  const ChosenRows chosen = choose_two(
      {900, 0, 1, 0, -1e30, -1e30, 2e30, 0, nan, nan, nan, nan, 1, nan, 0, 2}, 4, {0, 3, 3, 0});
  EXPECT_EQ(chosen.expert[0], 1);
  EXPECT_EQ(chosen.expert[1], 2);
  EXPECT_NEAR(chosen.weight[0], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(chosen.weight[0] + chosen.weight[1], 1.0, 1e-6);
  EXPECT_EQ(chosen.weight[3], 1.0);
  for (const size_t row : {2, 3}) {
    EXPECT_EQ(chosen.expert[2 * row], 0);
    EXPECT_EQ(chosen.expert[2 * row + 1], 1);
  }
}

TEST(GpuTopk, RefusesChoicesThatDoNotFit) {
  const int64_t k = device::kMaxChoices + 1;
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  EXPECT_THROW(run_topk(p, {1, k, k, 1}, {}, false), Error);
}

TEST(GpuTopk, LoadsOfLongRows) {
  for (const auto& [T, E, k, B] : {RouterShape{1800, 3, 2, 3}, {1030, 40, 1, 1}, {64, 5, 2, 32}})
    expect_op(fmt::format("row_loads/{}x{}of{}/{}", T, k, E, B), {DType::kF32, DType::kF32},
              [&](Place& p) -> std::vector<Output> {
                std::vector<int32_t> expert;
                const Rng rng(4, "loads");
                for (int64_t c = 0; c < T * k; ++c)
                  expert.push_back(int32_t(rng.below(uint64_t(c), uint64_t(E + 1))) - 1);
                const Tensor loads = p.unset(p.stream(), {B, E});
                row_loads(p.context(), p.ints(expert).view({T, k}), loads);
                return {{"loads", loads}};
              });
}

}  // namespace
}  // namespace ashlar::kernels
