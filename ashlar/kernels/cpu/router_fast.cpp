#include "ashlar/kernels/cpu/router_args.h"
#include "ashlar/kernels/moe.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/router_fast.cpp"
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

void mix_rows(const MixArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.R;
    V squares = set(0);
    for_lanes(x.R, [&](int64_t i, auto n) HWY_ATTR {
      V r = hn::Add(load(x.r, row + i, n), load(x.b, i, n));
      if (x.gamma) r = hn::MulAdd(load(x.gamma, i, n), load(x.r_prev, row + i, n), r);
      store(r, x.r, row + i, n);
      squares = hn::MulAdd(r, r, squares);
    });
    const float rstd = 1.0f / std::sqrt(sum_of_lanes(squares) / float(x.R) + float(x.eps));
    x.rstd.set(t, rstd);
    for_lanes(x.R, [&](int64_t i, auto n) HWY_ATTR {
      const V scaled = hn::Mul(load(x.r, row + i, n), set(rstd));
      store(hn::Mul(load(x.w, i, n), scaled), x.n, row + i, n);
    });
  }
}

void mix_gradient_rows(const MixGradientArgs<float>& x, int64_t begin, int64_t end,
                       float* partial) {
  float *db = partial, *dw = db + x.R, *dgamma = dw + x.R;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.R;
    V sum = set(0);
    for_lanes(x.R, [&](int64_t i, auto n) HWY_ATTR {
      const V weighted = hn::Mul(load(x.dn, row + i, n), load(x.w, i, n));
      sum = hn::MulAdd(weighted, load(x.r, row + i, n), sum);
    });
    const V rstd = set(x.rstd[t]), mean = set(sum_of_lanes(sum) * x.rstd[t] / float(x.R));
    for_lanes(x.R, [&](int64_t i, auto n) HWY_ATTR {
      const V dn = load(x.dn, row + i, n), normed = hn::Mul(load(x.r, row + i, n), rstd);
      V dr = hn::Mul(rstd, hn::NegMulAdd(normed, mean, hn::Mul(dn, load(x.w, i, n))));
      if (x.dr_next) dr = hn::Add(dr, load(x.dr_next, row + i, n));
      add_to(hn::Mul(dn, normed), dw + i, n);
      add_to(dr, db + i, n);
      store(dr, x.dr, row + i, n);
      if (x.dr_low.data() != x.dr.data()) store(dr, x.dr_low, row + i, n);
      if (!x.gamma) return;
      add_to(hn::Mul(dr, load(x.r_prev, row + i, n)), dgamma + i, n);
      store(hn::Mul(load(x.gamma, i, n), dr), x.dr_prev, row + i, n);
    });
  }
}

void gelu_rows(const GeluArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.R, [&](int64_t i, auto n) HWY_ATTR {
      const V z = hn::Add(load(x.z, t * x.R + i, n), load(x.b, i, n));
      store(hn::Mul(z, normal(z).distribution), x.s, t * x.R + i, n);
    });
}

void gelu_gradient_rows(const GeluGradientArgs<float>& x, int64_t begin, int64_t end, float* db) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.R, [&](int64_t i, auto n) HWY_ATTR {
      const V z = hn::Add(load(x.z, t * x.R + i, n), load(x.b, i, n));
      const Normal at = normal(z);
      const V dz = hn::Mul(load(x.ds, t * x.R + i, n), hn::MulAdd(z, at.density, at.distribution));
      store(dz, x.dz, t * x.R + i, n);
      add_to(dz, db + i, n);
    });
}

void select_rows(const SelectArgs<float>& x, int64_t begin, int64_t end) {
  const float* logits = reinterpret_cast<const float*>(x.logits.data());
  float* p = reinterpret_cast<float*>(x.p.data());
  for (int64_t t = begin; t < end; ++t) {
    const float* row = logits + t * x.X;
    float* out = p + t * x.X;
    V largest = set(-HUGE_VALF), sum = set(0);
    for_lanes(x.X, [&](int64_t i, auto n)
                       HWY_ATTR { largest = hn::Max(largest, load(row + i, n, -HUGE_VALF)); });
    largest = hn::MaxOfLanes(D(), largest);
    for_lanes(x.X, [&](int64_t i, auto n) HWY_ATTR {
      const V e = exp_approx(hn::Sub(load(row + i, n, -HUGE_VALF), largest));
      store(e, out + i, n);
      sum = hn::Add(sum, e);
    });
    const V scale = set(1.0f / sum_of_lanes(sum));
    for_lanes(x.X, [&](int64_t i, auto n)
                       HWY_ATTR { store(hn::Mul(load(out + i, n), scale), out + i, n); });
    int64_t best = 0;
    for (int64_t i = 1; i < x.X; ++i)
      if (out[i] + x.bias[i] > out[best] + x.bias[best]) best = i;
    x.expert[t] = int32_t(best);
    x.weight.set(t, out[best]);
  }
}

void select_gradient_rows(const SelectGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.X, chosen = row + x.expert[t];
    if (x.expert[t] == kNoClass) {
      for_lanes(x.X, [&](int64_t i, auto n) HWY_ATTR { store(set(0), x.dlogits, row + i, n); });
      continue;
    }
    const float scale = x.dweight[t] * x.p[chosen];
    for_lanes(x.X, [&](int64_t i, auto n) HWY_ATTR {
      store(hn::Mul(load(x.p, row + i, n), set(-scale)), x.dlogits, row + i, n);
    });
    x.dlogits.set(chosen, scale * (1.0f - x.p[chosen]));
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(mix_rows);
HWY_EXPORT(mix_gradient_rows);
HWY_EXPORT(gelu_rows);
HWY_EXPORT(gelu_gradient_rows);
HWY_EXPORT(select_rows);
HWY_EXPORT(select_gradient_rows);

void mix_rows_fast(const MixArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(mix_rows))(args, begin, end);
}
void mix_gradient_rows_fast(const MixGradientArgs<float>& args, int64_t begin, int64_t end,
                            float* partial) {
  dispatch(HWY_DISPATCH_TABLE(mix_gradient_rows))(args, begin, end, partial);
}
void gelu_rows_fast(const GeluArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(gelu_rows))(args, begin, end);
}
void gelu_gradient_rows_fast(const GeluGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* db) {
  dispatch(HWY_DISPATCH_TABLE(gelu_gradient_rows))(args, begin, end, db);
}
void select_rows_fast(const SelectArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(select_rows))(args, begin, end);
}
void select_gradient_rows_fast(const SelectGradientArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(select_gradient_rows))(args, begin, end);
}

}  // namespace ashlar::kernels::cpu
#endif
