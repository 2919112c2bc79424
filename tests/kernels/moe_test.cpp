#include "ashlar/kernels/moe.h"

#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

struct MoeCase {
  std::string name;
  int64_t E;
  std::vector<int32_t> expert;  // of token 0, of token 1, ..; E: skipped; kNoClass: padding
  int64_t k = 1;
  int64_t T() const { return int64_t(expert.size()) / k; }
  bool has_row(size_t choice) const { return expert[choice] != E && expert[choice] != kNoClass; }
};

std::vector<MoeCase> moe_cases() {
  std::vector<MoeCase> all = {{"one token", 1, {0}},
                              {"one skipped token", 2, {2}},
                              {"mixed, expert 1 without token", 4, {3, 0, 4, 3, 2, 0, 4, 3}},
                              {"all on one expert", 3, std::vector<int32_t>(17, 1)},
                              {"all skipped", 3, std::vector<int32_t>(3, 3)},
                              {"padding behind", 2, {1, 0, 2, 1, kNoClass, kNoClass}},
                              {"padding between", 2, {kNoClass, 1, kNoClass, kNoClass, 0, 2}},
                              {"all padding", 2, std::vector<int32_t>(3, kNoClass)}};
  MoeCase many{"many", 8, {}};
  const Rng rng(1, "experts");
  for (uint64_t t = 0; t < 130; ++t) many.expert.push_back(int32_t(rng.below(t, 9)));
  all.push_back(many);
  all.push_back({"two of three", 3, {0, 1, 1, 2, 0, 2, 0, 1}, 2});
  all.push_back({"all experts", 3, {0, 1, 2, 0, 1, 2}, 3});
  all.push_back({"top 2 with padding", 3, {0, 1, kNoClass, kNoClass, 1, 2}, 2});
  all.push_back({"top 2 with skipped choices", 3, {3, 1, 1, 2, 3, 3, 0, 3}, 2});
  MoeCase several{"top 4 of 9", 9, {}, 4};
  for (uint64_t t = 0; t < 70; ++t)
    for (int32_t j = 0; j < 4; ++j) several.expert.push_back((int32_t(rng.below(t, 6)) + j) % 9);
  all.push_back(several);
  return all;
}

RoutePlan make_plan(Bench& b, const MoeCase& c) {
  const Shape Tk{c.T(), c.k};
  const RoutePlan plan{b.zeros(DType::kI32, {c.E + 1}), b.zeros(DType::kI32, {Tk.numel()}),
                       b.zeros(DType::kI32, Tk), b.zeros(DType::kI64, {c.E + 1})};
  route_plan(b.context(), c.E, b.ints(c.expert).view(Tk), plan);
  return plan;
}

int64_t rows_of(const Bench& b, const RoutePlan& plan) {  // on meta nobody knows
  return b.context().meta() ? 0 : plan.row_of_expert_E1.span<int32_t>().back();
}

TEST(Moe, Plan) {
  for (const MoeCase& c : moe_cases()) {
    Bench b;
    const RoutePlan plan = make_plan(b, c);
    const auto first = plan.row_of_expert_E1.span<int32_t>();
    ASSERT_EQ(int64_t(first.size()), c.E + 1) << c.name;
    EXPECT_EQ(first[0], 0);
    for (int32_t e = 0; e <= c.E; ++e) {
      std::vector<int32_t> want, got;
      for (size_t t = 0; t < c.expert.size(); ++t)
        if (c.expert[t] == e) want.push_back(int32_t(t) / int32_t(c.k));
      EXPECT_EQ(plan.count_X.as<int64_t>()[e], int64_t(want.size())) << c.name;
      if (e == c.E) continue;
      for (int32_t row = first[size_t(e)]; row < first[size_t(e) + 1]; ++row)
        got.push_back(plan.token_of_row_R.as<int32_t>()[row]);
      EXPECT_EQ(got, want) << c.name << ": expert " << e << ", in token order";
    }
    for (size_t t = 0; t < c.expert.size(); ++t) {
      const int32_t row = plan.row_of_token_Tk.as<int32_t>()[t];
      if (!c.has_row(t)) {
        EXPECT_EQ(row, -1);
      } else {
        EXPECT_EQ(plan.token_of_row_R.as<int32_t>()[row], int32_t(t) / int32_t(c.k));
      }
    }
  }
}

TEST(Moe, PaddingHasNoChoice) {
  Bench b;
  const Sequence sequence({{0, 2, 0, 0}, {2, 1, 0, 1, true}, {3, 1, 0, 2}, {4, 2, 0, 3, true}});
  for (const int64_t k : {1, 3}) {
    std::vector<int32_t> expert(size_t(6 * k), 5), want = expert;
    for (const int64_t t : {2, 4, 5}) std::fill_n(want.begin() + t * k, k, kNoClass);
    const Tensor choices = b.ints(expert).view({6, k});
    leave_out_padding(b.context(), sequence, choices);
    EXPECT_EQ(values_of(choices), std::vector<double>(want.begin(), want.end()));
    leave_out_padding(b.context(), Sequence::rows(2, 3), choices);
    EXPECT_EQ(values_of(choices), std::vector<double>(want.begin(), want.end()));
  }
}

// A whole layer with y = 2 x as the expert: e_t = sum of 2 p_tj m_t, or what the skip class says.
TEST(Moe, GatherAndCombineMoveTheRightRows) {
  for (const MoeCase& c : moe_cases())
    for (const bool identity : {false, true}) {
      Bench b;
      const RoutePlan plan = make_plan(b, c);
      const int64_t T = c.T(), H = 3, rows = rows_of(b, plan);
      const Shape TH{T, H};
      const Tensor m = b.stream("m", TH), x = b.stream({T * c.k, H}), e = b.stream(TH),
                   p = b.stream("p", {T, c.k}, 2);
      gather_rows(b.context(), plan, m, x);
      for (int64_t i = 0; i < rows * H; ++i) x.as<double>()[i] *= 2;
      combine_forward(b.context(), {.plan = plan,
                                    .identity = identity,
                                    .y_rows_RH = x,
                                    .weight_Tk = p,
                                    .m_TH = m,
                                    .e_TH = e});
      for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < H; ++i) {
          double factor = 0;
          for (int64_t j = t * c.k; j < (t + 1) * c.k; ++j)
            factor += (c.has_row(size_t(j)) ? 2 : identity ? 1 : 0) * p.as<double>()[j];
          ASSERT_NEAR(e.as<double>()[t * H + i], factor * m.as<double>()[t * H + i], 1e-14)
              << c.name;
        }
    }
}

TEST(Moe, CombineGradients) {
  for (const MoeCase& c : moe_cases())
    for (const bool identity : {false, true}) {
      if (c.expert.size() > 20) continue;
      Bench b;
      const RoutePlan plan = make_plan(b, c);
      const int64_t T = c.T();
      const Shape TH{T, 3}, RH{T * c.k, 3};
      // The expert is the identity map, so that dx_rows = dy_rows.
      const Tensor m = b.stream("m", TH), x = b.stream(RH), e = b.stream(TH),
                   p = b.stream("p", {T, c.k}, 2);
      const Tensor de = b.stream("de", TH), dy = b.stream(RH), dp = b.stream({T, c.k}),
                   dm = b.stream(TH);
      const auto loss = [&] {
        gather_rows(b.context(), plan, m, x);
        combine_forward(b.context(), {.plan = plan,
                                      .identity = identity,
                                      .y_rows_RH = x,
                                      .weight_Tk = p,
                                      .m_TH = m,
                                      .e_TH = e});
        return dot(e, de);
      };
      loss();
      combine_backward(b.context(), {.plan = plan,
                                     .identity = identity,
                                     .de_TH = de,
                                     .y_rows_RH = x,
                                     .weight_Tk = p,
                                     .m_TH = m,
                                     .dy_rows_RH = dy,
                                     .dweight_Tk = dp});
      scatter_rows_add(b.context(), {.plan = plan,
                                     .identity = identity,
                                     .dx_rows_RH = dy,
                                     .weight_Tk = p,
                                     .de_TH = de,
                                     .dm_TH = dm});
      expect_gradient(c.name + " dp", p, values_of(dp), loss);
      expect_gradient(c.name + " dm", m, values_of(dm), loss);
      const Tensor with_shared = b.stream(TH), shared = b.stream("shared", TH);
      scatter_rows_add(b.context(), {.plan = plan,
                                     .identity = identity,
                                     .shared_TH = shared,
                                     .dx_rows_RH = dy,
                                     .weight_Tk = p,
                                     .de_TH = de,
                                     .dm_TH = with_shared});
      for (int64_t i = 0; i < dm.numel(); ++i)
        EXPECT_NEAR(with_shared.as<double>()[i], dm.as<double>()[i] + shared.as<double>()[i],
                    1e-14);
    }
}

TEST(Moe, CombinePaths) {
  for (const MoeCase& c : moe_cases())
    for (const bool identity : {false, true})
      for (const int64_t H : {1, 33, 256})
        expect_paths_agree(c.name, [&](Bench& b) -> std::vector<Output> {
          const RoutePlan plan = make_plan(b, c);
          const int64_t T = c.T(), rows = rows_of(b, plan);
          const Shape TH{T, H}, RH{T * c.k, H};
          const Tensor m = b.product("m", TH), x = b.product(RH), e = b.stream(TH),
                       p = b.stream("p", {T, c.k}, 2);
          gather_rows(b.context(), plan, m, x);
          const Tensor y = b.stream("y", RH), de = b.product("de", TH), dy = b.product(RH),
                       dp = b.stream({T, c.k});
          combine_forward(b.context(), {.plan = plan,
                                        .identity = identity,
                                        .y_rows_RH = y,
                                        .weight_Tk = p,
                                        .m_TH = m,
                                        .e_TH = e});
          combine_backward(b.context(), {.plan = plan,
                                         .identity = identity,
                                         .de_TH = de,
                                         .y_rows_RH = y,
                                         .weight_Tk = p,
                                         .m_TH = m,
                                         .dy_rows_RH = dy,
                                         .dweight_Tk = dp});
          const Tensor dx = b.product("dx", RH), dm_product = b.product("dm", TH),
                       dm_stream = b.stream("dm", TH);
          scatter_rows_add(b.context(), {.plan = plan,
                                         .identity = identity,
                                         .dx_rows_RH = dx,
                                         .weight_Tk = p,
                                         .de_TH = de,
                                         .dm_TH = dm_product});
          scatter_rows_add(b.context(), {.plan = plan,
                                         .identity = identity,
                                         .shared_TH = b.product("shared", TH),
                                         .dx_rows_RH = dx,
                                         .weight_Tk = p,
                                         .de_TH = de,
                                         .dm_TH = dm_stream});
          return {{"x", x.slice(0, rows)}, {"e", e},          {"dy", dy.slice(0, rows)}, {"dp", dp},
                  {"dm", dm_stream},       {"dm", dm_product}};
        });
}

// One order of sums, that of a token's choices, whatever rows their results stand in.
TEST(Moe, CombineAddsInTheOrderOfChoices) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench b({DType::kF32, DType::kF32}, false);
    const MoeCase c{"", 3, {0, 1, 2}, 3};
    const RoutePlan plan = make_plan(b, c);
    const Tensor y = b.stream({3, 1}), p = b.stream({1, 3}), m = b.stream({1, 1}),
                 e = b.stream({1, 1});
    for (const float first : {1e8f, 1.0f}) {
      const float results[] = {first, first == 1.0f ? 1e8f : 1.0f, -1e8f};
      std::copy_n(results, 3, y.as<float>());
      for (int j = 0; j < 3; ++j) p.as<float>()[j] = 1;
      combine_forward(
          b.context(),
          {.plan = plan, .identity = false, .y_rows_RH = y, .weight_Tk = p, .m_TH = m, .e_TH = e});
      EXPECT_EQ(e.as<float>()[0], (results[0] + results[1]) + results[2]) << name_of(path);
    }
    const float late[] = {1e8f, -1e8f, 1.0f};
    std::copy_n(late, 3, y.as<float>());
    combine_forward(
        b.context(),
        {.plan = plan, .identity = false, .y_rows_RH = y, .weight_Tk = p, .m_TH = m, .e_TH = e});
    EXPECT_EQ(e.as<float>()[0], 1.0f) << name_of(path);
  }
  select_isa(best);
}

TEST(Moe, SharedAddFormulaAndGradients) {
  for (const bool gated : {true, false}) {
    Bench b;
    const Shape TH{4, 3};
    const Tensor z = gated ? b.stream("z", {4}) : Tensor{}, s = b.stream("s", TH),
                 e = b.stream("e", TH);
    const std::vector<double> before = values_of(e);
    shared_add_forward(b.context(), z, s, e);
    for (int64_t i = 0; i < 12; ++i) {
      const double gate = gated ? 1 / (1 + std::exp(-z.as<double>()[i / 3])) : 1;
      EXPECT_NEAR(e.as<double>()[i], before[size_t(i)] + gate * s.as<double>()[i], 1e-15);
    }
    if (!gated) continue;
    const Tensor de = b.stream("de", TH), ds = b.stream(TH), dz = b.stream(Shape{4});
    const auto loss = [&] {
      for (int64_t i = 0; i < 12; ++i) e.as<double>()[i] = before[size_t(i)];
      shared_add_forward(b.context(), z, s, e);
      return dot(e, de);
    };
    shared_add_backward(b.context(), {.de_TH = de, .z_T = z, .s_TH = s, .ds_TH = ds, .dz_T = dz});
    expect_gradient("ds", s, values_of(ds), loss);
    expect_gradient("dz", z, values_of(dz), loss);
  }
}

TEST(Moe, SharedAddPaths) {
  for (const int64_t T : {1, 3, 65})
    for (const int64_t H : {1, 33, 256})
      expect_paths_agree(
          fmt::format("shared T={} H={}", T, H), [&](Bench& b) -> std::vector<Output> {
            const Shape TH{T, H};
            const Tensor z = b.stream("z", {T}), s = b.stream("s", TH), e = b.stream("e", TH);
            shared_add_forward(b.context(), z, s, e);
            shared_add_forward(b.context(), {}, s, e);
            const Tensor ds = b.product(TH), dz = b.stream(Shape{T});
            shared_add_backward(
                b.context(),
                {.de_TH = b.product("de", TH), .z_T = z, .s_TH = s, .ds_TH = ds, .dz_T = dz});
            return {{"e", e}, {"ds", ds}, {"dz", dz}};
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
