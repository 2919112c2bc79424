#include "ashlar/kernels/moe.h"

#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

struct Case {
  std::string name;
  int64_t E;
  std::vector<int32_t> expert;  // E: skipped
};

std::vector<Case> cases() {
  std::vector<Case> all = {{"one token", 1, {0}},
                           {"one skipped token", 2, {2}},
                           {"mixed, expert 1 without token", 4, {3, 0, 4, 3, 2, 0, 4, 3}},
                           {"all on one expert", 3, std::vector<int32_t>(17, 1)},
                           {"all skipped", 3, std::vector<int32_t>(3, 3)}};
  Case many{"many", 8, {}};
  const Rng rng(1, "experts");
  for (uint64_t t = 0; t < 130; ++t) many.expert.push_back(int32_t(rng.below(t, 9)));
  all.push_back(many);
  return all;
}

RoutePlan make_plan(Bench& b, const Case& c) {
  const int64_t T = int64_t(c.expert.size());
  const RoutePlan plan{b.zeros(DType::kI32, {c.E + 1}), b.zeros(DType::kI32, {T}),
                       b.zeros(DType::kI32, {T}), b.zeros(DType::kI64, {c.E + 1})};
  route_plan(b.context(), c.E, b.ints(c.expert), plan);
  return plan;
}

int64_t rows_of(const Bench& b, const RoutePlan& plan) {  // on meta nobody knows
  return b.context().meta() ? 0 : plan.row_of_expert_E1.span<int32_t>().back();
}

TEST(Moe, Plan) {
  for (const Case& c : cases()) {
    Bench b;
    const RoutePlan plan = make_plan(b, c);
    const auto first = plan.row_of_expert_E1.span<int32_t>();
    ASSERT_EQ(int64_t(first.size()), c.E + 1) << c.name;
    EXPECT_EQ(first[0], 0);
    for (int32_t e = 0; e <= c.E; ++e) {
      std::vector<int32_t> want, got;
      for (size_t t = 0; t < c.expert.size(); ++t)
        if (c.expert[t] == e) want.push_back(int32_t(t));
      EXPECT_EQ(plan.count_X.as<int64_t>()[e], int64_t(want.size())) << c.name;
      if (e == c.E) continue;
      for (int32_t row = first[size_t(e)]; row < first[size_t(e) + 1]; ++row)
        got.push_back(plan.token_of_row_T.as<int32_t>()[row]);
      EXPECT_EQ(got, want) << c.name << ": expert " << e << ", in token order";
    }
    for (size_t t = 0; t < c.expert.size(); ++t) {
      const int32_t row = plan.row_of_token_T.as<int32_t>()[t];
      if (c.expert[t] == c.E) {
        EXPECT_EQ(row, -1);
      } else {
        EXPECT_EQ(plan.token_of_row_T.as<int32_t>()[row], int32_t(t));
      }
    }
  }
}

// A whole layer with y = 2 x as the expert: e_t = 2 p_t m_t, or what the skip class says.
TEST(Moe, GatherAndCombineMoveTheRightRows) {
  for (const Case& c : cases())
    for (const bool identity : {false, true}) {
      Bench b;
      const RoutePlan plan = make_plan(b, c);
      const int64_t T = int64_t(c.expert.size()), H = 3, rows = rows_of(b, plan);
      const Shape TH{T, H};
      const Tensor m = b.stream("m", TH), x = b.stream(TH), e = b.stream(TH),
                   p = b.stream("p", {T}, 2);
      gather_rows(b.context(), plan, m, x);
      for (int64_t i = 0; i < rows * H; ++i) x.as<double>()[i] *= 2;
      combine_forward(b.context(), {.plan = plan,
                                    .identity = identity,
                                    .y_rows_TH = x,
                                    .chosen_T = p,
                                    .m_TH = m,
                                    .e_TH = e});
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < H; ++i) {
          const double factor = c.expert[size_t(t)] < c.E ? 2 : identity ? 1 : 0;
          ASSERT_NEAR(e.as<double>()[t * H + i],
                      factor * p.as<double>()[t] * m.as<double>()[t * H + i], 1e-15)
              << c.name;
        }
    }
}

TEST(Moe, CombineGradients) {
  for (const Case& c : cases())
    for (const bool identity : {false, true}) {
      if (c.expert.size() > 20) continue;
      Bench b;
      const RoutePlan plan = make_plan(b, c);
      const int64_t T = int64_t(c.expert.size());
      const Shape TH{T, 3};
      // The expert is the identity map, so that dx_rows = dy_rows.
      const Tensor m = b.stream("m", TH), x = b.stream(TH), e = b.stream(TH),
                   p = b.stream("p", {T}, 2);
      const Tensor de = b.stream("de", TH), dy = b.stream(TH), dp = b.stream(Shape{T}),
                   dm = b.stream(TH);
      const auto loss = [&] {
        gather_rows(b.context(), plan, m, x);
        combine_forward(b.context(), {.plan = plan,
                                      .identity = identity,
                                      .y_rows_TH = x,
                                      .chosen_T = p,
                                      .m_TH = m,
                                      .e_TH = e});
        return dot(e, de);
      };
      loss();
      combine_backward(b.context(), {.plan = plan,
                                     .identity = identity,
                                     .de_TH = de,
                                     .y_rows_TH = x,
                                     .chosen_T = p,
                                     .m_TH = m,
                                     .dy_rows_TH = dy,
                                     .dchosen_T = dp});
      scatter_rows_add(b.context(), {.plan = plan,
                                     .identity = identity,
                                     .dx_rows_TH = dy,
                                     .chosen_T = p,
                                     .de_TH = de,
                                     .dm_TH = dm});
      expect_gradient(c.name + " dp", p, values_of(dp), loss);
      expect_gradient(c.name + " dm", m, values_of(dm), loss);
    }
}

TEST(Moe, CombinePaths) {
  for (const Case& c : cases())
    for (const bool identity : {false, true})
      for (const int64_t H : {1, 33, 256})
        expect_paths_agree(c.name, [&](Bench& b) -> std::vector<Output> {
          const RoutePlan plan = make_plan(b, c);
          const int64_t T = int64_t(c.expert.size()), rows = rows_of(b, plan);
          const Shape TH{T, H};
          const Tensor m = b.product("m", TH), x = b.product(TH), e = b.stream(TH),
                       p = b.stream("p", {T}, 2);
          gather_rows(b.context(), plan, m, x);
          const Tensor y = b.stream("y", TH), de = b.product("de", TH), dy = b.product(TH),
                       dp = b.stream(Shape{T});
          combine_forward(b.context(), {.plan = plan,
                                        .identity = identity,
                                        .y_rows_TH = y,
                                        .chosen_T = p,
                                        .m_TH = m,
                                        .e_TH = e});
          combine_backward(b.context(), {.plan = plan,
                                         .identity = identity,
                                         .de_TH = de,
                                         .y_rows_TH = y,
                                         .chosen_T = p,
                                         .m_TH = m,
                                         .dy_rows_TH = dy,
                                         .dchosen_T = dp});
          const Tensor dx = b.product("dx", TH), dm_product = b.product("dm", TH),
                       dm_stream = b.stream("dm", TH);
          scatter_rows_add(b.context(), {.plan = plan,
                                         .identity = identity,
                                         .dx_rows_TH = dx,
                                         .chosen_T = p,
                                         .de_TH = de,
                                         .dm_TH = dm_product});
          scatter_rows_add(b.context(), {.plan = plan,
                                         .identity = identity,
                                         .dx_rows_TH = dx,
                                         .chosen_T = p,
                                         .de_TH = de,
                                         .dm_TH = dm_stream});
          return {{"x", x.slice(0, rows)}, {"e", e},          {"dy", dy.slice(0, rows)}, {"dp", dp},
                  {"dm", dm_stream},       {"dm", dm_product}};
        });
}

TEST(Moe, SwigluFormulaAndGradient) {
  Bench b;
  const Tensor gate_up = b.stream("gate_up", {3, 10}), act = b.stream({3, 5});
  const Tensor rows = b.ints({0, 1, 2});
  swiglu_forward(b.context(), rows, gate_up, act);
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t i = 0; i < 5; ++i) {
      const double *in = gate_up.as<double>() + row * 10, gate = in[i];
      EXPECT_NEAR(act.as<double>()[row * 5 + i],
                  row < 2 ? gate / (1 + std::exp(-gate)) * in[5 + i] : 0, 1e-15);
    }
  const Tensor dact = b.stream("dact", {3, 5}), dgate_up = b.stream({3, 10});
  swiglu_backward(b.context(), rows, dact, gate_up, dgate_up);
  expect_gradient("dgate_up", gate_up, values_of(dgate_up), [&] {
    swiglu_forward(b.context(), rows, gate_up, act);
    return dot(act, dact);
  });
}

TEST(Moe, SwigluOverAllRows) {
  Bench b;
  const Tensor gate_up = b.stream("gate_up", {3, 10}), act = b.stream({3, 5});
  swiglu_forward(b.context(), {}, gate_up, act);
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t i = 0; i < 5; ++i) {
      const double *in = gate_up.as<double>() + row * 10, gate = in[i];
      EXPECT_NEAR(act.as<double>()[row * 5 + i], gate / (1 + std::exp(-gate)) * in[5 + i], 1e-15);
    }
  const Tensor dact = b.stream("dact", {3, 5}), dgate_up = b.stream({3, 10});
  swiglu_backward(b.context(), {}, dact, gate_up, dgate_up);
  expect_gradient("dgate_up", gate_up, values_of(dgate_up), [&] {
    swiglu_forward(b.context(), {}, gate_up, act);
    return dot(act, dact);
  });
}

TEST(Moe, SwigluPaths) {
  for (const int64_t rows : {0, 1, 3, 17, 65})
    for (const int64_t F : {1, 8, 33, 512})
      expect_paths_agree(
          fmt::format("swiglu rows={} F={}", rows, F), [&](Bench& b) -> std::vector<Output> {
            const int64_t T = rows + 2;
            const Tensor row_of_expert = b.ints({0, int32_t(rows)});
            const Tensor gate_up = b.product("gate_up", {T, 2 * F}, 0.5), act = b.product({T, F});
            swiglu_forward(b.context(), row_of_expert, gate_up, act);
            const Tensor dgate_up = b.product({T, 2 * F});
            swiglu_backward(b.context(), row_of_expert, b.product("dact", {T, F}), gate_up,
                            dgate_up);
            return {{"act", act}, {"dgate_up", dgate_up}};
          });
  for (const int64_t T : {1, 3, 17, 65})
    for (const int64_t F : {1, 33, 512})
      expect_paths_agree(
          fmt::format("dense swiglu T={} F={}", T, F), [&](Bench& b) -> std::vector<Output> {
            const Tensor gate_up = b.product("gate_up", {T, 2 * F}, 0.5), act = b.product({T, F}),
                         dgate_up = b.product({T, 2 * F});
            swiglu_forward(b.context(), {}, gate_up, act);
            swiglu_backward(b.context(), {}, b.product("dact", {T, F}), gate_up, dgate_up);
            return {{"act", act}, {"dgate_up", dgate_up}};
          });
}

TEST(Moe, SwigluFarFromZero) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench b({DType::kF32, DType::kF32}, false);
    const Tensor gate_up = b.stream({1, 8}), act = b.stream({1, 4}), dgate_up = b.stream({1, 8});
    const float gates[] = {-1000, -90, 90, 1000};
    for (int64_t i = 0; i < 4; ++i)
      gate_up.as<float>()[i] = gates[i], gate_up.as<float>()[4 + i] = 1;
    const Tensor row_of_expert = b.ints({0, 1});
    swiglu_forward(b.context(), row_of_expert, gate_up, act);
    swiglu_backward(b.context(), row_of_expert, gate_up.view({2, 4}).slice(1, 2), gate_up,
                    dgate_up);  // dact = 1
    const double want[] = {0, 0, 90, 1000}, slope[] = {0, 0, 1, 1};
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(act.as<float>()[i], want[i], 1e-6) << name_of(path);
      EXPECT_NEAR(dgate_up.as<float>()[i], slope[i], 1e-6) << name_of(path);
    }
  }
  select_isa(best);
}

}  // namespace
}  // namespace ashlar::kernels
