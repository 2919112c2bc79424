#include "ashlar/kernels/topk.h"

#include <algorithm>
#include <numeric>

#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/moe.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// With scores of each kind, weights of each kind.
const std::vector<TopkRule> kRules = {
    {.choose_by_logits = false, .renormalize = false, .scale = 1.0},
    {.choose_by_logits = false, .renormalize = true, .scale = 1.0},
    {.choose_by_logits = false, .renormalize = false, .scale = 2.5},
    {.choose_by_logits = true, .renormalize = true, .scale = 0.5},
};

struct Routed {
  TopkRule rule;
  Tensor logits, bias, p, lse, expert, chosen;
  Routed(Bench& b, const TopkRule& rule, int64_t T, int64_t E, int64_t k, bool biased)
      : rule(rule) {
    logits = b.stream("logits", {T, E}), p = b.stream({T, E}), lse = b.stream(Shape{T});
    if (biased) bias = b.stream("bias", {E});
    expert = b.zeros(DType::kI32, {T, k}), chosen = b.stream({T, k});
  }
  void forward(const Bench& b) {
    topk_forward(b.context(), {.rule = rule,
                               .logits_TE = logits,
                               .bias_E = bias,
                               .p_TE = p,
                               .lse_T = lse,
                               .expert_Tk = expert,
                               .weight_Tk = chosen});
  }
};

// The formula once more: all experts in the order of their scores.
TEST(Topk, Formula) {
  for (const TopkRule& rule : kRules)
    for (const bool biased : {false, true})
      for (const int64_t k : {1, 2, 5}) {
        Bench b;
        const int64_t T = 9, E = 5;
        Routed r(b, rule, T, E, k, biased);
        r.forward(b);
        for (int64_t t = 0; t < T; ++t) {
          const double* logits = r.logits.as<double>() + t * E;
          double sum = 0;
          for (int64_t e = 0; e < E; ++e) sum += std::exp(logits[e]);
          EXPECT_NEAR(r.lse.as<double>()[t], std::log(sum), 1e-14);
          std::vector<double> p(static_cast<size_t>(E)), score(static_cast<size_t>(E));
          for (size_t e = 0; e < size_t(E); ++e) {
            p[e] = std::exp(logits[e]) / sum;
            score[e] = (rule.choose_by_logits ? logits[e] : p[e]) +
                       (biased ? r.bias.as<double>()[e] : 0.0);
            EXPECT_NEAR(r.p.as<double>()[t * E + int64_t(e)], p[e], 1e-15);
          }
          std::vector<int32_t> order(static_cast<size_t>(E));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t c) {
            return score[size_t(a)] > score[size_t(c)];
          });
          order.resize(size_t(k));
          std::sort(order.begin(), order.end());
          double chosen = 0;
          for (const int32_t e : order) chosen += p[size_t(e)];
          for (int64_t j = 0; j < k; ++j) {
            const int32_t e = order[size_t(j)];
            EXPECT_EQ(r.expert.as<int32_t>()[t * k + j], e);
            EXPECT_NEAR(r.chosen.as<double>()[t * k + j],
                        rule.scale * p[size_t(e)] / (rule.renormalize ? chosen : 1.0), 1e-14);
          }
        }
      }
}

TEST(Topk, TiesGoToTheLowestIndices) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench b({DType::kF32, DType::kF32}, false);
    Routed r(b, {}, 3, 6, 2, false);
    const float rows[3][6] = {{1, 1, 1, 1, 1, 1}, {0, 3, 2, 2, 2, 0}, {0, 1, 5, 1, 5, 5}};
    std::copy_n(&rows[0][0], 18, r.logits.as<float>());
    r.forward(b);
    EXPECT_EQ(values_of(r.expert), (std::vector<double>{0, 1, 1, 2, 2, 4})) << name_of(path);
  }
  select_isa(best);
}

// Probabilities that are 0 in fp32 still have weights that add up to 1; logits that are no numbers
// choose different experts.
TEST(Topk, FarFromZeroAndNotANumber) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench b({DType::kF32, DType::kF32}, false);
    Routed r(b, {}, 3, 4, 2, true);
    const float rows[3][4] = {{900, 0, 1, 0}, {-1e30f, -1e30f, 2e30f, 0}, {NAN, NAN, NAN, NAN}};
    const float bias[4] = {0, 3, 3, 0};
    std::copy_n(&rows[0][0], 12, r.logits.as<float>());
    std::copy_n(bias, 4, r.bias.as<float>());
    r.forward(b);
    EXPECT_EQ(r.expert.as<int32_t>()[0], 1) << name_of(path);
    EXPECT_EQ(r.expert.as<int32_t>()[1], 2) << name_of(path);
    EXPECT_NEAR(r.chosen.as<float>()[0], 1 / (1 + std::exp(1.0)), 1e-6) << name_of(path);
    EXPECT_NEAR(r.chosen.as<float>()[0] + r.chosen.as<float>()[1], 1.0, 1e-6) << name_of(path);
    EXPECT_EQ(r.chosen.as<float>()[3], 1.0f) << name_of(path);
    EXPECT_EQ(values_of(r.expert)[4], 0.0) << name_of(path);
    EXPECT_EQ(values_of(r.expert)[5], 1.0) << name_of(path);
  }
  select_isa(best);
}

TEST(Topk, GradientsWithBothLosses) {
  for (const TopkRule& rule : kRules)
    for (const bool biased : {false, true})
      for (const bool losses : {false, true}) {
        Bench b;
        const int64_t T = 9, E = 5, k = 2, B = 3;
        // One token of the first row is padding, and the last row is nothing else.
        const Sequence sequence(
            {{0, 2, 0, 0}, {2, 1, 0, 1, true}, {3, 3, 0, 2}, {6, 3, 0, 3, true}});
        const double tokens_of_row[] = {2, 3};
        const auto is_padding = [](int64_t t) { return t == 2 || t >= 6; };
        Routed r(b, rule, T, E, k, biased);
        const Tensor dchosen = b.stream("dchosen", {T, k}), dlogits = b.stream({T, E});
        const Tensor loads = losses ? b.stream({B, E}) : Tensor{}, sums = b.stream(Shape{2});
        const double balance_scale = losses ? 0.37 : 0.0, z_scale = losses ? 0.11 : 0.0;
        // The losses as they are defined; the loads stay what they were.
        const auto balance = [&] {
          double sum = 0;
          for (int64_t t = 0; t < T && losses; ++t)
            for (int64_t e = 0; e < E && !is_padding(t); ++e)
              sum += loads.as<double>()[t / (T / B) * E + e] * r.p.as<double>()[t * E + e] /
                     tokens_of_row[t / (T / B)];
          return balance_scale * sum;
        };
        const auto z = [&] {
          double sum = 0;
          for (int64_t t = 0; t < T; ++t)
            if (!is_padding(t)) sum += z_scale * std::pow(r.lse.as<double>()[t], 2);
          return sum;
        };
        const auto loss = [&] {
          r.forward(b);
          double sum = balance() + z();
          for (int64_t c = 0; c < T * k; ++c)
            if (!is_padding(c / k)) sum += r.chosen.as<double>()[c] * dchosen.as<double>()[c];
          return sum;
        };
        r.forward(b);
        leave_out_padding(b.context(), sequence, r.expert);
        if (losses) {
          row_loads(b.context(), r.expert, loads);
          std::vector<double> want(size_t(B * E));
          for (int64_t c = 0; c < T * k; ++c) {
            if (is_padding(c / k)) continue;
            want[size_t(c / (T / B * k) * E + r.expert.as<int32_t>()[c])] += 1;
          }
          EXPECT_EQ(values_of(loads), want);
        }
        topk_backward(b.context(), {.rule = rule,
                                    .dweight_Tk = dchosen,
                                    .p_TE = r.p,
                                    .lse_T = r.lse,
                                    .expert_Tk = r.expert,
                                    .weight_Tk = r.chosen,
                                    .loads_BE = loads,
                                    .balance_scale = balance_scale,
                                    .z_scale = z_scale,
                                    .dlogits_TE = dlogits,
                                    .losses_2 = sums});
        EXPECT_NEAR(sums.as<double>()[0], balance(), 1e-14);
        EXPECT_NEAR(sums.as<double>()[1], z(), 1e-14);
        expect_gradient("dlogits", r.logits, values_of(dlogits), loss);
      }
}

TEST(Topk, Paths) {
  for (const TopkRule& rule : kRules)
    for (const auto& [T, E, k] :
         {std::array<int64_t, 3>{1, 1, 1}, {3, 6, 2}, {66, 17, 3}, {130, 64, 8}, {4, 33, 33}})
      for (const bool biased : {false, true})
        expect_paths_agree(
            fmt::format("topk T={} E={} k={}", T, E, k), [&](Bench& b) -> std::vector<Output> {
              Routed r(b, rule, T, E, k, biased);
              r.forward(b);
              if (T > 3)  // some of each path's blocks of tokens
                leave_out_padding(b.context(),
                                  Sequence({{0, 1, 0, 0}, {1, 2, 0, 1, true}, {3, T - 3, 0, 2}}),
                                  r.expert);
              const int64_t B = T % 2 == 0 ? 2 : 1;
              const Tensor loads = b.stream({B, E}), sums = b.stream(Shape{2});
              row_loads(b.context(), r.expert, loads);
              const Tensor dlogits = b.product({T, E});
              topk_backward(b.context(), {.rule = rule,
                                          .dweight_Tk = b.stream("dchosen", {T, k}),
                                          .p_TE = r.p,
                                          .lse_T = r.lse,
                                          .expert_Tk = r.expert,
                                          .weight_Tk = r.chosen,
                                          .loads_BE = loads,
                                          .balance_scale = 0.01,
                                          .z_scale = 0.02,
                                          .dlogits_TE = dlogits,
                                          .losses_2 = sums});
              return {{"p", r.p},           {"lse", r.lse},       {"expert", r.expert},
                      {"chosen", r.chosen}, {"dlogits", dlogits}, {"losses", sums},
                      {"loads", loads}};
            });
}

}  // namespace
}  // namespace ashlar::kernels
