#include <cmath>

#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/topk_args.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
T exponential(T x) {
  return std::exp(x);
}

template <typename T>
void topk_rows(const TopkArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.E;
    T largest = x.logits[row], sum = 0;  // taken off, so that no exponential is infinite
    for (int64_t i = 1; i < x.E; ++i) largest = std::max(largest, x.logits[row + i]);
    for (int64_t i = 0; i < x.E; ++i) sum += std::exp(x.logits[row + i] - largest);
    for (int64_t i = 0; i < x.E; ++i) x.p.set(row + i, std::exp(x.logits[row + i] - largest) / sum);
    x.lse.set(t, largest + std::log(sum));
    const Cells<T>& scores = x.choose_by_logits ? x.logits : x.p;
    const auto score = [&](int64_t e) { return scores[row + e] + (x.bias ? x.bias[e] : T(0)); };
    choose(x.E, x.k, score, x.expert + t * x.k);
    weigh_chosen<T>(x, t, exponential);
  }
}

template <typename T>
void topk_gradient_rows(const TopkGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  RowScale<T> scales(x);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.E, loads = t / x.tokens_per_row * x.E;
    if (x.expert[t * x.k] == kNoClass) {
      for (int64_t i = 0; i < x.E; ++i) x.dlogits.set(row + i, T(0));
      continue;
    }
    const T scale = scales.of_token(t);
    const auto balance = [&](int64_t i) { return x.loads ? scale * x.loads[loads + i] : T(0); };
    const ChosenGradient<T> chosen(x, t);
    T balance_loss = 0;
    for (int64_t i = 0; i < x.E; ++i) balance_loss += balance(i) * x.p[row + i];
    const T lse = x.lse[t], common = 2 * x.z_scale * lse - chosen.common() - balance_loss;
    const auto all = [&](int64_t i) { return x.p[row + i] * (balance(i) + common); };
    for (int64_t i = 0; i < x.E; ++i) x.dlogits.set(row + i, all(i));
    for (int64_t j = 0; j < x.k; ++j) {
      const int64_t i = x.expert[t * x.k + j];
      x.dlogits.set(row + i, all(i) + chosen.extra(j));
    }
    partial[0] += balance_loss;
    partial[1] += x.z_scale * lse * lse;
  }
}

}  // namespace

void topk_forward(const Context& ctx, const TopkForward& x) {
  with_real(x.p_TE.dtype, [&]<typename Real>(Real) {
    const TopkArgs<Real> args{.E = x.p_TE.shape[1],
                              .k = x.expert_Tk.shape[1],
                              .choose_by_logits = x.rule.choose_by_logits,
                              .renormalize = x.rule.renormalize,
                              .scale = Real(x.rule.scale),
                              .logits = x.logits_TE,
                              .bias = x.bias_E,
                              .p = x.p_TE,
                              .lse = x.lse_T,
                              .weight = x.weight_Tk,
                              .expert = ints(x.expert_Tk)};
    run_rows(ctx, x.p_TE.shape[0], args, topk_rows_fast, topk_rows<Real>);
  });
}

void row_loads(const Context& ctx, const Tensor& expert_Tk, const Tensor& loads_BE) {
  if (ctx.meta()) return;
  const int64_t B = loads_BE.shape[0], E = loads_BE.shape[1], choices = expert_Tk.numel() / B;
  const int32_t* expert = ints(expert_Tk);
  with_real(loads_BE.dtype, [&]<typename Real>(Real) {
    Real* loads = loads_BE.as<Real>();
    parallel_for(*ctx.threads, B, 1, [&](int64_t begin, int64_t end) {
      std::fill(loads + begin * E, loads + end * E, Real(0));
      for (int64_t b = begin; b < end; ++b)
        for (int64_t c = b * choices; c < (b + 1) * choices; ++c)
          if (expert[c] != kNoClass) loads[b * E + expert[c]] += 1;
    });
  });
}

void topk_backward(const Context& ctx, const TopkBackward& x) {
  const int64_t T = x.p_TE.shape[0];
  with_real(x.p_TE.dtype, [&]<typename Real>(Real) {
    const TopkGradientArgs<Real> args{.E = x.p_TE.shape[1],
                                      .k = x.expert_Tk.shape[1],
                                      .tokens_per_row = x.loads_BE ? T / x.loads_BE.shape[0] : T,
                                      .renormalize = x.rule.renormalize,
                                      .balance_scale = x.balance_scale,
                                      .scale = Real(x.rule.scale),
                                      .z_scale = Real(x.z_scale),
                                      .dweight = x.dweight_Tk,
                                      .p = x.p_TE,
                                      .lse = x.lse_T,
                                      .weight = x.weight_Tk,
                                      .loads = x.loads_BE,
                                      .dlogits = x.dlogits_TE,
                                      .expert = ints(x.expert_Tk)};
    run_summing_rows(ctx, T, {x.losses_2}, args, topk_gradient_rows_fast, topk_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
