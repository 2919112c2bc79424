#include "ashlar/kernels/router.h"

#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/moe.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

struct RouterCase {
  int64_t T, R;
};
constexpr RouterCase kRouterCases[] = {{1, 1}, {1, 6}, {3, 17}, {17, 64}, {65, 33}, {130, 256}};
constexpr double kRouterEps = 1e-5;

struct Mix {
  Bench& b;
  bool first;  // block 0 has no previous state
  Shape TR, R;
  Tensor down, r, bias, r_prev, gamma, w, n, rstd;
  Mix(Bench& bench, const RouterCase& c, bool first_block)
      : b(bench), first(first_block), TR{c.T, c.R}, R{c.R} {
    down = b.stream("down", TR), r = b.stream(TR), bias = b.stream("b", R), w = b.stream("w", R, 1);
    if (!first) r_prev = b.stream("r_prev", TR), gamma = b.stream("gamma", R, 1);
    n = b.product(TR), rstd = b.stream(Shape{c.T});
  }
  void forward() {
    copy_convert(down, r);
    router_mix_forward(b.context(), {.eps = kRouterEps,
                                     .r_TR = r,
                                     .b_dn_R = bias,
                                     .r_prev_TR = r_prev,
                                     .gamma_R = gamma,
                                     .w_R = w,
                                     .n_TR = n,
                                     .rstd_T = rstd});
  }
};

TEST(Router, MixFormula) {
  for (const bool first : {true, false}) {
    Bench b;
    Mix m(b, {2, 3}, first);
    m.forward();
    for (int64_t t = 0; t < 2; ++t) {
      double square = 0;
      for (int64_t i = 0; i < 3; ++i) {
        double r = m.down.as<double>()[t * 3 + i] + m.bias.as<double>()[i];
        if (!first) r += m.gamma.as<double>()[i] * m.r_prev.as<double>()[t * 3 + i];
        EXPECT_DOUBLE_EQ(m.r.as<double>()[t * 3 + i], r);
        square += r * r;
      }
      for (int64_t i = 0; i < 3; ++i)
        EXPECT_NEAR(
            m.n.as<double>()[t * 3 + i],
            m.w.as<double>()[i] * m.r.as<double>()[t * 3 + i] / std::sqrt(square / 3 + kRouterEps),
            1e-14);
    }
  }
}

TEST(Router, MixGradients) {
  for (const bool first : {true, false})
    for (const bool last : {true, false}) {
      Bench b;
      Mix m(b, {3, 5}, first);
      const Tensor dn = b.stream("dn", m.TR), dr_next = last ? Tensor{} : b.stream("dr_next", m.TR);
      const auto loss = [&] {
        m.forward();
        return dot(m.n, dn) + (last ? 0 : dot(m.r, dr_next));
      };
      loss();
      const Tensor dr = b.stream(m.TR), db = b.stream(m.R), dw = b.stream(m.R);
      const Tensor dgamma = first ? Tensor{} : b.stream(m.R),
                   dr_prev = first ? Tensor{} : b.stream(m.TR);
      router_mix_backward(b.context(), {.dn_TR = dn,
                                        .dr_next_TR = dr_next,
                                        .r_TR = m.r,
                                        .r_prev_TR = m.r_prev,
                                        .gamma_R = m.gamma,
                                        .w_R = m.w,
                                        .rstd_T = m.rstd,
                                        .dr_TR = dr,
                                        .dr_low_TR = dr,
                                        .dr_prev_TR = dr_prev,
                                        .db_dn_R = db,
                                        .dw_R = dw,
                                        .dgamma_R = dgamma});
      expect_gradient("dr", m.down, values_of(dr), loss);
      expect_gradient("db", m.bias, values_of(db), loss);
      expect_gradient("dw", m.w, values_of(dw), loss);
      if (first) continue;
      expect_gradient("dgamma", m.gamma, values_of(dgamma), loss);
      expect_gradient("dr_prev", m.r_prev, values_of(dr_prev), loss);
    }
}

TEST(Router, MixPaths) {
  for (const RouterCase& c : kRouterCases)
    for (const bool first : {true, false})
      for (const bool last : {true, false})
        expect_paths_agree(
            fmt::format("mix T={} R={} first={} last={}", c.T, c.R, first, last),
            [&](Bench& b) -> std::vector<Output> {
              Mix m(b, c, first);
              m.forward();
              const Tensor dr = b.stream(m.TR), db = b.stream("db", m.R), dw = b.stream("dw", m.R);
              const Tensor dr_low =
                  b.precision().product == b.precision().stream ? dr : b.product(m.TR);
              const Tensor dgamma = first ? Tensor{} : b.stream("dgamma", m.R);
              // In place: what goes back replaces what came from the next block.
              const Tensor carry = b.stream("dr_next", m.TR);
              router_mix_backward(b.context(), {.dn_TR = b.stream("dn", m.TR),
                                                .dr_next_TR = last ? Tensor{} : carry,
                                                .r_TR = m.r,
                                                .r_prev_TR = m.r_prev,
                                                .gamma_R = m.gamma,
                                                .w_R = m.w,
                                                .rstd_T = m.rstd,
                                                .dr_TR = dr,
                                                .dr_low_TR = dr_low,
                                                .dr_prev_TR = first ? Tensor{} : carry,
                                                .db_dn_R = db,
                                                .dw_R = dw,
                                                .dgamma_R = dgamma});
              std::vector<Output> outputs = {{"r", m.r}, {"n", m.n},         {"rstd", m.rstd},
                                             {"dr", dr}, {"dr_low", dr_low}, {"db", db},
                                             {"dw", dw}};
              if (!first) outputs.insert(outputs.end(), {{"dgamma", dgamma}, {"dr_prev", carry}});
              return outputs;
            });
}

TEST(Router, GeluFormulaAndSlope) {
  Bench b;
  const Shape TR{1, 7};
  const Tensor z = b.stream(TR), bias = b.stream(Shape{7}), s = b.stream(TR);
  const double points[] = {-40, -3, -0.5, 0, 0.25, 2, 30};
  std::copy(std::begin(points), std::end(points), z.as<double>());
  bias_gelu_forward(b.context(), z, bias, s);
  for (int i = 0; i < 7; ++i)
    EXPECT_NEAR(s.as<double>()[i], points[i] * 0.5 * (1 + std::erf(points[i] / std::sqrt(2.0))),
                1e-14);
  const Tensor ds = b.stream("ds", TR), dz = b.stream(TR), db = b.stream(Shape{7});
  bias_gelu_backward(b.context(), {.ds_TR = ds, .z_TR = z, .b_R = bias, .dz_TR = dz, .db_R = db});
  const auto loss = [&] {
    bias_gelu_forward(b.context(), z, bias, s);
    return dot(s, ds);
  };
  expect_gradient("dz", z, values_of(dz), loss);
  expect_gradient("db", bias, values_of(db), loss);
}

TEST(Router, GeluPaths) {
  for (const RouterCase& c : kRouterCases)
    expect_paths_agree(
        fmt::format("gelu T={} R={}", c.T, c.R), [&](Bench& b) -> std::vector<Output> {
          const Shape TR{c.T, c.R}, R{c.R};
          const Tensor z = b.stream("z", TR, 0.25), bias = b.stream("b", R), s = b.product(TR);
          bias_gelu_forward(b.context(), z, bias, s);
          const Tensor dz = b.product(TR), db = b.stream("db", R);
          bias_gelu_backward(
              b.context(),
              {.ds_TR = b.stream("ds", TR), .z_TR = z, .b_R = bias, .dz_TR = dz, .db_R = db});
          return {{"s", s}, {"dz", dz}, {"db", db}};
        });
}

// The fast GELU over its whole range: within 2e-7 max(1, |x|) of the exact one, as is its slope.
TEST(Router, FastGeluError) {
  const Isa best = isa();
  const int64_t count = 40001;
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench b({DType::kF32, DType::kF32}, false);
    const Tensor z = b.stream({1, count}), bias = b.stream({count}), s = b.stream({1, count});
    const Tensor ds = b.stream({1, count}), slope = b.stream({1, count}), db = b.stream({count});
    for (int64_t i = 0; i < count; ++i) {
      z.as<float>()[i] = float(i - count / 2) / 1000.0f;
      ds.as<float>()[i] = 1;
    }
    bias_gelu_forward(b.context(), z, bias, s);
    bias_gelu_backward(b.context(),
                       {.ds_TR = ds, .z_TR = z, .b_R = bias, .dz_TR = slope, .db_R = db});
    for (int64_t i = 0; i < count; ++i) {
      const double x = z.as<float>()[i], phi = 0.5 * std::erfc(-x * M_SQRT1_2);
      const double want_slope = phi + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      ASSERT_NEAR(s.as<float>()[i], x * phi, 2e-7 * std::max(1.0, std::abs(x)))
          << x << name_of(path);
      ASSERT_NEAR(slope.as<float>()[i], want_slope, 4e-7) << x << name_of(path);
    }
  }
  select_isa(best);
}

TEST(Router, SelectionUsesTheBiasAndTheWeightDoesNot) {
  Bench b;
  const Tensor logits = b.stream({3, 3}), bias = b.stream(Shape{3}), p = b.stream({3, 3});
  const Tensor expert = b.zeros(DType::kI32, {3}), chosen = b.stream(Shape{3});
  const double rows[] = {0, std::log(2.0), 0, std::log(4.0), 0, 0, 5, 5, 5};
  std::copy(std::begin(rows), std::end(rows), logits.as<double>());
  bias.as<double>()[2] = 0.3;
  router_select_forward(
      b.context(),
      {.logits_TX = logits, .bias_X = bias, .p_TX = p, .expert_T = expert, .weight_T = chosen});
  EXPECT_EQ(values_of(expert),
            (std::vector<double>{2, 0, 2}));  // 1/4 + 0.3 > 1/2;  2/3 > 1/6 + 0.3
  EXPECT_NEAR(chosen.as<double>()[0], 0.25, 1e-15);
  EXPECT_NEAR(chosen.as<double>()[1], 4.0 / 6, 1e-15);
  bias.as<double>()[2] = 0;
  router_select_forward(
      b.context(),
      {.logits_TX = logits, .bias_X = bias, .p_TX = p, .expert_T = expert, .weight_T = chosen});
  EXPECT_EQ(expert.as<int32_t>()[2], 0);  // a tie: the lowest index
}

TEST(Router, SelectGradients) {
  Bench b;
  const Shape TX{4, 5}, T{4};
  const Tensor logits = b.stream("logits", TX), bias = b.stream(Shape{5}), p = b.stream(TX);
  const Tensor expert = b.zeros(DType::kI32, T), chosen = b.stream(T),
               dchosen = b.stream("dchosen", T), dlogits = b.stream(TX);
  const auto loss = [&] {
    router_select_forward(
        b.context(),
        {.logits_TX = logits, .bias_X = bias, .p_TX = p, .expert_T = expert, .weight_T = chosen});
    return dot(chosen, dchosen);
  };
  loss();
  router_select_backward(
      b.context(), {.dweight_T = dchosen, .p_TX = p, .expert_T = expert, .dlogits_TX = dlogits});
  expect_gradient("dlogits", logits, values_of(dlogits), loss);
}

// Tokens 1 and 2 are padding; what their probabilities and gradients of weights are plays no part.
TEST(Router, SelectGivesPaddingNoGradient) {
  const Isa best = isa();
  for (const DType stream : {DType::kF64, DType::kF32})
    for (const Isa path : supported_isas()) {
      select_isa(path);
      Bench b({stream, stream}, false);
      const Shape TX{4, 5}, T{4};
      const Tensor p = b.stream("p", TX), dchosen = b.stream("dchosen", T),
                   dlogits = b.stream("dlogits", TX), expert = b.ints({4, kNoClass, kNoClass, 0});
      router_select_backward(
          b.context(),
          {.dweight_T = dchosen, .p_TX = p, .expert_T = expert, .dlogits_TX = dlogits});
      const std::vector<double> got = values_of(dlogits);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i] == 0, i / 5 == 1 || i / 5 == 2) << name_of(path) << " " << i;
    }
  select_isa(best);
}

TEST(Router, SelectPaths) {
  for (const int64_t T : {1, 3, 17, 65, 130})
    for (const int64_t X : {1, 2, 9, 17, 25})
      expect_paths_agree(
          fmt::format("select T={} X={}", T, X), [&](Bench& b) -> std::vector<Output> {
            const Shape TX{T, X};
            const Tensor logits = b.stream("logits", TX), bias = b.stream("bias", {X}),
                         p = b.stream(TX);
            const Tensor expert = b.zeros(DType::kI32, {T}), chosen = b.stream(Shape{T}),
                         dlogits = b.product(TX);
            router_select_forward(b.context(), {.logits_TX = logits,
                                                .bias_X = bias,
                                                .p_TX = p,
                                                .expert_T = expert,
                                                .weight_T = chosen});
            router_select_backward(b.context(), {.dweight_T = b.stream("dchosen", {T}),
                                                 .p_TX = p,
                                                 .expert_T = expert,
                                                 .dlogits_TX = dlogits});
            return {{"p", p}, {"expert", expert}, {"chosen", chosen}, {"dlogits", dlogits}};
          });
}

}  // namespace
}  // namespace ashlar::kernels
