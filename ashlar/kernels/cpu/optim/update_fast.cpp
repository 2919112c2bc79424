#include <cstring>

#include "ashlar/kernels/cpu/optim/update_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/optim/update_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// body(i) for i = 0, lanes, .. while a whole vector is left; returns where the rest begins.
template <typename F>
HWY_INLINE int64_t for_each_vector(int64_t n, F body) {
  const auto lanes = int64_t(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i);
  return i;
}

// The last elements of an array, filled up to a vector: computed like all others, so that the bits
// of an element do not depend on where a range ends.
struct Rest {
  HWY_ALIGN float lanes[hn::MaxLanes(D())] = {};
  Rest(const float* from, int64_t count) {
    std::memcpy(lanes, from, size_t(count) * sizeof(float));
  }
  void store(float* to, int64_t count) const {
    std::memcpy(to, lanes, size_t(count) * sizeof(float));
  }
};

void adamw_loop(const AdamWFactors<float>& f, float* HWY_RESTRICT w, const float* HWY_RESTRICT g,
                float* HWY_RESTRICT m, float* HWY_RESTRICT v, int64_t n) {
  const D d;
  const auto beta1 = hn::Set(d, f.beta1), new1 = hn::Set(d, f.one_minus_beta1 * f.grad_scale);
  const auto beta2 = hn::Set(d, f.beta2), new2 = hn::Set(d, f.one_minus_beta2);
  const auto keep = hn::Set(d, f.keep), rate = hn::Set(d, f.rate);
  const auto inverse_root2 = hn::Set(d, f.inverse_root2), eps = hn::Set(d, f.eps);
  const auto grad_scale = hn::Set(d, f.grad_scale);
  const auto update = [&](float* HWY_RESTRICT w, const float* HWY_RESTRICT g, float* HWY_RESTRICT m,
                          float* HWY_RESTRICT v) HWY_ATTR {
    const auto raw = hn::LoadU(d, g), gradient = hn::Mul(raw, grad_scale);
    const auto m_new = hn::MulAdd(beta1, hn::LoadU(d, m), hn::Mul(raw, new1));
    const auto square = hn::Mul(gradient, hn::Mul(gradient, new2));
    const auto v_new = hn::MulAdd(beta2, hn::LoadU(d, v), square);
    const auto root = hn::MulAdd(hn::Sqrt(v_new), inverse_root2, eps);
    const auto step = hn::Div(hn::Mul(rate, m_new), root);
    hn::StoreU(m_new, d, m);
    hn::StoreU(v_new, d, v);
    hn::StoreU(hn::MulSub(keep, hn::LoadU(d, w), step), d, w);
  };
  const int64_t i =
      for_each_vector(n, [&](int64_t i) HWY_ATTR { update(w + i, g + i, m + i, v + i); });
  if (i == n) return;
  const int64_t rest = n - i;
  Rest ws(w + i, rest), gs(g + i, rest), ms(m + i, rest), vs(v + i, rest);
  update(ws.lanes, gs.lanes, ms.lanes, vs.lanes);
  ws.store(w + i, rest), ms.store(m + i, rest), vs.store(v + i, rest);
}

void muon_momentum_loop(float mu, bool nesterov, float grad_scale, const float* g, float* m,
                        float* x, int64_t n) {
  const D d;
  const auto mus = hn::Set(d, mu), scale = hn::Set(d, grad_scale);
  const auto update = [&](const float* g, float* m, float* x) HWY_ATTR {
    const auto gradient = hn::Mul(hn::LoadU(d, g), scale);
    const auto m_new = hn::MulAdd(mus, hn::LoadU(d, m), gradient);
    hn::StoreU(m_new, d, m);
    hn::StoreU(nesterov ? hn::MulAdd(mus, m_new, gradient) : m_new, d, x);
  };
  const int64_t i = for_each_vector(n, [&](int64_t i) HWY_ATTR { update(g + i, m + i, x + i); });
  if (i == n) return;
  const int64_t rest = n - i;
  Rest gs(g + i, rest), ms(m + i, rest);
  update(gs.lanes, ms.lanes, gs.lanes);
  ms.store(m + i, rest), gs.store(x + i, rest);
}

void axpby_loop(float alpha, const float* x, float keep, float* y, int64_t n) {
  const D d;
  const auto alphas = hn::Set(d, alpha), keeps = hn::Set(d, keep);
  const auto update = [&](const float* x, float* y) HWY_ATTR {
    const auto kept = hn::Mul(keeps, hn::LoadU(d, y));
    hn::StoreU(hn::MulAdd(alphas, hn::LoadU(d, x), kept), d, y);
  };
  const int64_t i = for_each_vector(n, [&](int64_t i) HWY_ATTR { update(x + i, y + i); });
  if (i == n) return;
  const int64_t rest = n - i;
  const Rest xs(x + i, rest);
  Rest ys(y + i, rest);
  update(xs.lanes, ys.lanes);
  ys.store(y + i, rest);
}

float sum_of_squares_loop(const float* x, int64_t n) {
  const D d;
  const auto lanes = int64_t(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    const auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  const auto all = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  float sum = hn::GetLane(hn::SumOfLanes(d, all));
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

int64_t first_non_finite_loop(const float* x, int64_t n) {
  const D d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto exponent = hn::Set(du, 0x7f800000u);
  const auto lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::BitCast(du, hn::LoadU(d, x + i));
    if (!hn::AllFalse(du, hn::Eq(hn::And(bits, exponent), exponent))) break;
  }
  while (i < n && std::isfinite(x[i])) ++i;
  return i;
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(adamw_loop);
HWY_EXPORT(muon_momentum_loop);
HWY_EXPORT(axpby_loop);
HWY_EXPORT(sum_of_squares_loop);
HWY_EXPORT(first_non_finite_loop);

void adamw_fast(const AdamWFactors<float>& factors, float* w, const float* g, float* m, float* v,
                int64_t n) {
  dispatch(HWY_DISPATCH_TABLE(adamw_loop))(factors, w, g, m, v, n);
}
void muon_momentum_fast(float mu, bool nesterov, float grad_scale, const float* g, float* m,
                        float* x, int64_t n) {
  dispatch(HWY_DISPATCH_TABLE(muon_momentum_loop))(mu, nesterov, grad_scale, g, m, x, n);
}
void axpby_fast(float alpha, const float* x, float keep, float* y, int64_t n) {
  dispatch(HWY_DISPATCH_TABLE(axpby_loop))(alpha, x, keep, y, n);
}
float block_sum_of_squares(const float* x, int64_t n) {
  return dispatch(HWY_DISPATCH_TABLE(sum_of_squares_loop))(x, n);
}
int64_t first_non_finite_fast(const float* x, int64_t n) {
  return dispatch(HWY_DISPATCH_TABLE(first_non_finite_loop))(x, n);
}

}  // namespace ashlar::kernels::cpu
#endif
