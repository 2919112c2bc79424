#include "ashlar/kernels/cpu/topk_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/topk_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
#include "ashlar/kernels/cpu/simd/vector_math-inl.h"
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

const float* floats(const Cells<float>& cells, int64_t at) {
  return reinterpret_cast<const float*>(cells.data()) + at;
}

float exponential(float x) {
  return hn::GetLane(exp_approx(set(x)));
}

void topk_rows(const TopkArgs<float>& x, int64_t begin, int64_t end) {
  const float* bias = x.bias ? floats(x.bias, 0) : nullptr;
  for (int64_t t = begin; t < end; ++t) {
    const float* logits = floats(x.logits, t * x.E);
    float* p = const_cast<float*>(floats(x.p, t * x.E));
    V largest = set(-HUGE_VALF), sum = set(0);
    for_lanes(x.E, [&](int64_t i, auto n)
                       HWY_ATTR { largest = hn::Max(largest, load(logits + i, n, -HUGE_VALF)); });
    largest = hn::MaxOfLanes(D(), largest);
    for_lanes(x.E, [&](int64_t i, auto n) HWY_ATTR {
      const V e = exp_approx(hn::Sub(load(logits + i, n, -HUGE_VALF), largest));
      store(e, p + i, n);
      sum = hn::Add(sum, e);
    });
    const float total = sum_of_lanes(sum);
    const V scale = set(1.0f / total);
    for_lanes(x.E,
              [&](int64_t i, auto n) HWY_ATTR { store(hn::Mul(load(p + i, n), scale), p + i, n); });
    x.lse.set(t, hn::GetLane(largest) + std::log(total));
    const float* scores = x.choose_by_logits ? logits : p;
    const auto score = [=](int64_t e) { return bias ? scores[e] + bias[e] : scores[e]; };
    choose(x.E, x.k, score, x.expert + t * x.k);
    weigh_chosen<float>(x, t, exponential);
  }
}

void topk_gradient_rows(const TopkGradientArgs<float>& x, int64_t begin, int64_t end,
                        float* partial) {
  RowScale<float> scales(x);
  for (int64_t t = begin; t < end; ++t) {
    if (x.expert[t * x.k] == kNoClass) {
      for_lanes(x.E, [&](int64_t i, auto n) HWY_ATTR { store(set(0), x.dlogits, t * x.E + i, n); });
      continue;
    }
    const float scale = scales.of_token(t);
    const float *p = floats(x.p, t * x.E), lse = x.lse[t];
    const float* loads = x.loads ? floats(x.loads, t / x.tokens_per_row * x.E) : nullptr;
    const ChosenGradient<float> chosen(x, t);
    float balance_loss = 0;
    if (loads) {
      V sum = set(0);
      for_lanes(x.E, [&](int64_t i, auto n)
                         HWY_ATTR { sum = hn::MulAdd(load(loads + i, n), load(p + i, n), sum); });
      balance_loss = scale * sum_of_lanes(sum);
    }
    const float common = 2 * x.z_scale * lse - chosen.common() - balance_loss;
    const V balance = set(scale);
    for_lanes(x.E, [&](int64_t i, auto n) HWY_ATTR {
      V factor = set(common);
      if (loads) factor = hn::MulAdd(balance, load(loads + i, n), factor);
      store(hn::Mul(load(p + i, n), factor), x.dlogits, t * x.E + i, n);
    });
    for (int64_t j = 0; j < x.k; ++j) {
      const int64_t i = x.expert[t * x.k + j];
      const float factor = common + (loads ? scale * loads[i] : 0.0f);
      x.dlogits.set(t * x.E + i, p[i] * factor + chosen.extra(j));
    }
    partial[0] += balance_loss;
    partial[1] += x.z_scale * lse * lse;
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(topk_rows);
HWY_EXPORT(topk_gradient_rows);

void topk_rows_fast(const TopkArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(topk_rows))(args, begin, end);
}
void topk_gradient_rows_fast(const TopkGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial) {
  dispatch(HWY_DISPATCH_TABLE(topk_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
