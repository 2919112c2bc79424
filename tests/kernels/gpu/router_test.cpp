#include <limits>

#include "ashlar/kernels/moe.h"
#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

struct RouterSize {
  int64_t T, R;
};
// Less than a lane's pack, packs for some lanes, several packs a lane; several blocks of rows.
constexpr RouterSize kRouterSizes[] = {{1, 6}, {3, 17}, {65, 33}, {130, 256}, {5, 520}};

// A router's first block has no state of a block before it, and the last gets no gradient back.
std::vector<Output> run_mix(Place& p, const RouterSize& s, bool first, bool last) {
  const Shape TR{s.T, s.R}, R{s.R};
  const auto unless_first = [&](const char* name, const Shape& shape) {
    return first ? Tensor() : p.random(p.wide(), name, shape);
  };
  const Tensor r = p.random(p.wide(), "down", TR), w = p.random(p.wide(), "w", R, 1);
  const Tensor r_prev = unless_first("r_prev", TR), gamma = unless_first("gamma", R);
  const Tensor n = p.unset(p.product(), TR), rstd = p.unset(p.wide(), {s.T});
  kernels::router_mix_forward(p.context(), {.eps = 1e-5,
                                            .r_TR = r,
                                            .b_dn_R = p.random(p.wide(), "b", R),
                                            .r_prev_TR = r_prev,
                                            .gamma_R = gamma,
                                            .w_R = w,
                                            .n_TR = n,
                                            .rstd_T = rstd});
  const Tensor dr = p.unset(p.wide(), TR);
  const Tensor dr_low = p.product() == p.wide() ? dr : p.unset(p.product(), TR);
  const Tensor db = p.random(p.wide(), "db", R), dw = p.random(p.wide(), "dw", R);
  const Tensor dgamma = unless_first("dgamma", R);
  // In place: what goes back replaces what came from the next block.
  const Tensor carry = p.random(p.wide(), "dr_next", TR);
  kernels::router_mix_backward(p.context(), {.dn_TR = p.random(p.product(), "dn", TR),
                                             .dr_next_TR = last ? Tensor() : carry,
                                             .r_TR = r,
                                             .r_prev_TR = r_prev,
                                             .gamma_R = gamma,
                                             .w_R = w,
                                             .rstd_T = rstd,
                                             .dr_TR = dr,
                                             .dr_low_TR = dr_low,
                                             .dr_prev_TR = first ? Tensor() : carry,
                                             .db_dn_R = db,
                                             .dw_R = dw,
                                             .dgamma_R = dgamma});
  std::vector<Output> outputs = {{"r", r},           {"n", n},   {"rstd", rstd}, {"dr", dr},
                                 {"dr_low", dr_low}, {"db", db}, {"dw", dw},     {"carry", carry}};
  if (!first) outputs.push_back({"dgamma", dgamma});
  return outputs;
}

TEST(GpuRouter, MixMatchesTheReferenceInEveryMode) {
  for (const RouterSize& s : kRouterSizes)
    for (const DType product : {DType::kF32, DType::kBF16})
      for (const bool first : {true, false})
        for (const bool last : {true, false})
          expect_op(fmt::format("router_mix/{}x{}/{}{}{}", s.T, s.R, name_of(product),
                                first ? "/first" : "", last ? "/last" : ""),
                    {DType::kF32, product}, [&](Place& p) { return run_mix(p, s, first, last); });
}

std::vector<Output> run_gelu(Place& p, const RouterSize& s) {
  const Shape TR{s.T, s.R}, R{s.R};
  const Tensor z = p.random(p.wide(), "z", TR, 0.25), b = p.random(p.wide(), "b", R);
  const Tensor out = p.unset(p.product(), TR), dz = p.unset(p.product(), TR);
  const Tensor db = p.random(p.wide(), "db", R);
  kernels::bias_gelu_forward(p.context(), z, b, out);
  kernels::bias_gelu_backward(
      p.context(),
      {.ds_TR = p.random(p.product(), "ds", TR), .z_TR = z, .b_R = b, .dz_TR = dz, .db_R = db});
  return {{"s", out}, {"dz", dz}, {"db", db}};
}

TEST(GpuRouter, GeluMatchesTheReferenceInEveryMode) {
  for (const RouterSize& s : kRouterSizes)
    for (const DType product : {DType::kF32, DType::kBF16})
      expect_op(fmt::format("bias_gelu/{}x{}/{}", s.T, s.R, name_of(product)),
                {DType::kF32, product}, [&](Place& p) { return run_gelu(p, s); });
}

// Over its whole range: GELU within 2e-7 max(1, |x|) of x Phi(x), its slope within 4e-7.
TEST(GpuRouter, GeluIsNearItsFormulaEverywhere) {
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  constexpr int64_t kPoints = 20001;
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor z = p.zeros(DType::kF32, {1, kPoints}), ds = p.zeros(DType::kF32, {1, kPoints});
  p.edit<float>(z, [](float* x) {
    for (int64_t i = 0; i < kPoints; ++i) x[i] = float(i - kPoints / 2) / 500.0f;
  });
  p.edit<float>(ds, [](float* x) { std::fill_n(x, kPoints, 1.0f); });
  const Tensor b = p.zeros(DType::kF32, {kPoints}), db = p.zeros(DType::kF32, {kPoints});
  const Tensor s = p.unset(DType::kF32, {1, kPoints}), slope = p.unset(DType::kF32, {1, kPoints});
  kernels::bias_gelu_forward(p.context(), z, b, s);
  kernels::bias_gelu_backward(p.context(),
                              {.ds_TR = ds, .z_TR = z, .b_R = b, .dz_TR = slope, .db_R = db});
  const std::vector<double> at = values_of(z), gelu = values_of(s), slopes = values_of(slope);
  for (size_t i = 0; i < size_t(kPoints); ++i) {
    const double x = at[i], phi = 0.5 * std::erfc(-x * M_SQRT1_2);
    const double want_slope = phi + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    ASSERT_NEAR(gelu[i], x * phi, 2e-7 * std::max(1.0, std::abs(x))) << x;
    ASSERT_NEAR(slopes[i], want_slope, 4e-7) << x;
  }
}

std::vector<Output> run_select(Place& p, int64_t T, int64_t X) {
  const Shape TX{T, X};
  const Tensor probabilities = p.unset(p.wide(), TX), expert = p.unset(DType::kI32, {T});
  const Tensor weight = p.unset(p.wide(), {T}), dlogits = p.unset(p.product(), TX);
  kernels::router_select_forward(p.context(), {.logits_TX = p.random(p.wide(), "logits", TX),
                                               .bias_X = p.random(p.wide(), "bias", {X}),
                                               .p_TX = probabilities,
                                               .expert_T = expert,
                                               .weight_T = weight});
  kernels::router_select_backward(p.context(), {.dweight_T = p.random(p.wide(), "dweight", {T}),
                                                .p_TX = probabilities,
                                                .expert_T = expert,
                                                .dlogits_TX = dlogits});
  return {{"p", probabilities}, {"expert", expert}, {"weight", weight}, {"dlogits", dlogits}};
}

TEST(GpuRouter, SelectMatchesTheReferenceInEveryMode) {
  for (const int64_t T : {1, 3, 65})
    for (const int64_t X : {1, 17, 32, 200})
      for (const DType product : {DType::kF32, DType::kBF16})
        expect_op(fmt::format("router_select/{}x{}/{}", T, X, name_of(product)),
                  {DType::kF32, product}, [&](Place& p) { return run_select(p, T, X); });
}

// The experts of tokens with these logits, of which there are X each.
std::vector<double> experts_of(const std::vector<float>& logits, const std::vector<float>& bias) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const int64_t X = int64_t(bias.size()), T = int64_t(logits.size()) / X;
  const Tensor logits_TX = p.zeros(DType::kF32, {T, X}), bias_X = p.zeros(DType::kF32, {X});
  p.edit<float>(logits_TX, [&](float* x) { std::ranges::copy(logits, x); });
  p.edit<float>(bias_X, [&](float* x) { std::ranges::copy(bias, x); });
  const Tensor expert = p.unset(DType::kI32, {T});
  kernels::router_select_forward(p.context(), {.logits_TX = logits_TX,
                                               .bias_X = bias_X,
                                               .p_TX = p.unset(DType::kF32, {T, X}),
                                               .expert_T = expert,
                                               .weight_T = p.unset(DType::kF32, {T})});
  return values_of(expert);
}

TEST(GpuRouter, TiesGoToTheLowestIndex) {
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  // Equal classes in one lane (1 and 33), in several (1 and 40), in all.
  std::vector<float> logits(3 * 70, 0), bias(70, 0);
  logits[1] = logits[33] = logits[70 + 40] = logits[70 + 1] = logits[70 + 69] = 2;
  EXPECT_EQ(experts_of(logits, bias), (std::vector<double>{1, 1, 0}));
  bias[5] = bias[69] = 1;  // more than any probability here; row 1 prefers 69 besides
  EXPECT_EQ(experts_of(logits, bias), (std::vector<double>{5, 69, 5}));
}

// As on the CPU, which also starts with class 0: no index is out of range, whatever the logits.
TEST(GpuRouter, ChoosesAClassAmongNan) {
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<float> logits(2 * 40, 0);
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  logits[40 + 39] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(experts_of(logits, std::vector<float>(40, 0)), (std::vector<double>{0, 0}));
}

TEST(GpuRouter, PaddingHasNoGradient) {
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor probabilities = p.random(DType::kF32, "p", {4, 5}),
               dlogits = p.unset(DType::kF32, {4, 5});
  p.edit<float>(probabilities, [](float* x) { x[5] = std::numeric_limits<float>::quiet_NaN(); });
  kernels::router_select_backward(p.context(), {.dweight_T = p.random(DType::kF32, "dweight", {4}),
                                                .p_TX = probabilities,
                                                .expert_T = p.ints({4, kNoClass, kNoClass, 0}),
                                                .dlogits_TX = dlogits});
  const std::vector<double> got = values_of(dlogits);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i] == 0, i / 5 == 1 || i / 5 == 2) << i;
}

TEST(GpuRouter, OfNoTokenLeavesGradientsAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const std::vector<double> before = values_of(p.random(DType::kF32, "db", {8}));
  EXPECT_EQ(values_of(run_mix(p, {0, 8}, false, false)[5].tensor), before);
  EXPECT_EQ(values_of(run_gelu(p, {0, 8})[2].tensor), before);
  EXPECT_TRUE(run_select(p, 0, 8)[1].tensor.empty());
}

}  // namespace
}  // namespace ashlar::kernels
