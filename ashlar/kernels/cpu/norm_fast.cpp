#include "ashlar/kernels/cpu/norm_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/norm_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

// Vector i of what normed rows are multiplied by.
template <typename Args, typename Count>
HWY_INLINE V weight(const Args& x, int64_t i, Count n) {
  return hn::Add(set(float(x.weight_offset)), load(x.w, i, n));
}

// Vector i of a row of the merge's result, and its two summands before their scales.
struct Merged {
  V o, r, h;
};
template <typename Args, typename Count>
HWY_INLINE Merged merge(const Args& x, int64_t row, int64_t i, Count n) {
  const V o = hn::Add(load(x.o, row + i, n), load(x.bo, i, n));
  const V r = hn::Add(load(x.r, row + i, n), load(x.br, i, n));
  return {o, r, hn::MulAdd(o, load(x.ao, i, n), hn::Mul(r, load(x.ar, i, n)))};
}

// The same of a merge without parameters, of o and what is added to it.
template <typename Args, typename Count>
HWY_INLINE V sum_of(const Args& x, int64_t row, int64_t i, V residual, Count n) {
  const V alpha = set(float(x.factors.alpha)), beta = set(float(x.factors.beta));
  return hn::MulAdd(load(x.o, row + i, n), beta, hn::Mul(residual, alpha));
}
template <typename Args, typename Count>
HWY_INLINE V plain_merge(const Args& x, int64_t row, int64_t i, Count n) {
  return sum_of(x, row, i, load(x.r, row + i, n), n);
}
// With r normed, as the norm before the branch made it.
template <typename Count>
HWY_INLINE V normed_merge(const NormArgs<float>& x, int64_t row, int64_t i, V rstd_r, Count n) {
  const V v = hn::Add(set(float(x.weight_offset)), load(x.v, i, n));
  return sum_of(x, row, i, hn::Mul(v, hn::Mul(load(x.r, row + i, n), rstd_r)), n);
}

void norm_rows(const NormArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.H;
    V squares = set(0);
    if (x.v) {
      const V rstd_r = set(x.rstd_r[t]);
      for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
        const V h = normed_merge(x, row, i, rstd_r, n);
        store(h, x.h, row + i, n);
        squares = hn::MulAdd(h, h, squares);
      });
    } else if (x.o && !x.ao) {
      for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
        const V h = plain_merge(x, row, i, n);
        store(h, x.h, row + i, n);
        squares = hn::MulAdd(h, h, squares);
      });
    } else if (x.o) {
      for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
        const V h = merge(x, row, i, n).h;
        store(h, x.h, row + i, n);
        squares = hn::MulAdd(h, h, squares);
      });
    } else {
      for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
        const V h = load(x.h, row + i, n);
        squares = hn::MulAdd(h, h, squares);
      });
    }
    if (!x.w) continue;
    const float rstd = 1.0f / std::sqrt(sum_of_lanes(squares) / float(x.H) + float(x.eps));
    x.rstd.set(t, rstd);
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      const V scaled = hn::Mul(load(x.h, row + i, n), set(rstd));
      store(hn::Mul(weight(x, i, n), scaled), x.y, row + i, n);
    });
  }
}

// All that reached y.
template <typename Count>
HWY_INLINE V gradient_of_y(const NormGradientArgs<float>& x, int64_t at, Count n) {
  const V dy = load(x.dy, at, n);
  return x.dy_in ? hn::Add(dy, load(x.dy_in, at, n)) : dy;
}

// The gradient of the norm alone, with what else reached h; adds to dw.
template <typename Count>
HWY_INLINE V norm_gradient(const NormGradientArgs<float>& x, int64_t row, int64_t i, V h, V rstd,
                           V mean, float* dw, Count n) {
  const V dy = gradient_of_y(x, row + i, n), normed = hn::Mul(h, rstd);
  add_to(hn::Mul(dy, normed), dw + i, n);
  const V along = hn::NegMulAdd(normed, mean, hn::Mul(dy, weight(x, i, n)));
  const V dh = hn::Mul(rstd, along);
  return x.dh_in ? hn::Add(dh, load(x.dh_in, row + i, n)) : dh;
}

// mean(dy w h) rstd.
template <typename Hidden>
HWY_INLINE float mean_along(const NormGradientArgs<float>& x, int64_t row, float rstd,
                            Hidden hidden) {
  V sum = set(0);
  for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
    sum = hn::MulAdd(hn::Mul(gradient_of_y(x, row + i, n), weight(x, i, n)), hidden(i, n), sum);
  });
  return sum_of_lanes(sum) * rstd / float(x.H);
}

void rms_rows(const NormGradientArgs<float>& x, int64_t begin, int64_t end, float* dw) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.H;
    const auto hidden = [&](int64_t i, auto n) HWY_ATTR { return load(x.h, row + i, n); };
    const float rstd = x.rstd[t], mean = mean_along(x, row, rstd, hidden);
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      store(norm_gradient(x, row, i, hidden(i, n), set(rstd), set(mean), dw, n), x.dr, row + i, n);
    });
  }
}

// Both gradients of a merge without parameters.
template <typename Count>
HWY_INLINE void store_summands(const NormGradientArgs<float>& x, int64_t at, V dh, Count n) {
  store(hn::Mul(dh, set(float(x.factors.beta))), x.d_o, at, n);
  store(hn::Mul(dh, set(float(x.factors.alpha))), x.dr, at, n);
}

void plain_merge_rows(const NormGradientArgs<float>& x, int64_t begin, int64_t end, float* dw) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.H;
    const auto hidden = [&](int64_t i, auto n) HWY_ATTR {
      return x.h ? load(x.h, row + i, n) : plain_merge(x, row, i, n);
    };
    const float rstd = x.rstd[t], mean = mean_along(x, row, rstd, hidden);
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      const V dh = norm_gradient(x, row, i, hidden(i, n), set(rstd), set(mean), dw, n);
      store_summands(x, row + i, dh, n);
    });
  }
}

template <bool kNormed>
void merge_rows(const NormGradientArgs<float>& x, int64_t begin, int64_t end, float* partial) {
  const int64_t H = x.H;
  float *dw = partial, *dao = kNormed ? dw + H : dw, *dbo = dao + H, *dar = dbo + H, *dbr = dar + H;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * H;
    float rstd = 0, mean = 0;
    if constexpr (kNormed) {
      rstd = x.rstd[t];
      mean = mean_along(x, row, rstd, [&](int64_t i, auto n) HWY_ATTR {
        return x.h ? load(x.h, row + i, n) : merge(x, row, i, n).h;
      });
    }
    for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
      const Merged m = merge(x, row, i, n);
      V dh;
      if constexpr (kNormed)
        dh = norm_gradient(x, row, i, m.h, set(rstd), set(mean), dw, n);
      else
        dh = load(x.dh_in, row + i, n);
      add_to(hn::Mul(dh, m.o), dao + i, n);
      add_to(hn::Mul(dh, m.r), dar + i, n);
      add_to(dh, dbo + i, n);  // the sum of dh, scaled below
      store(hn::Mul(dh, load(x.ao, i, n)), x.d_o, row + i, n);
      store(hn::Mul(dh, load(x.ar, i, n)), x.dr, row + i, n);
    });
  }
  for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
    const V sum = load(dbo + i, n);
    store(hn::Mul(sum, load(x.ar, i, n)), dbr + i, n);
    store(hn::Mul(sum, load(x.ao, i, n)), dbo + i, n);
  });
}

// The gradient of the merge alone is dh_in.
void plain_merge_alone_rows(const NormGradientArgs<float>& x, int64_t begin, int64_t end, float*) {
  for (int64_t row = begin * x.H; row < end * x.H; row += x.H)
    for_lanes(x.H, [&](int64_t i, auto n)
                       HWY_ATTR { store_summands(x, row + i, load(x.dh_in, row + i, n), n); });
}

void norm_gradient_rows(const NormGradientArgs<float>& x, int64_t begin, int64_t end,
                        float* partial) {
  auto* rows = rms_rows;
  if (x.d_o && x.w) rows = x.ao ? merge_rows<true> : plain_merge_rows;
  if (x.d_o && !x.w) rows = x.ao ? merge_rows<false> : plain_merge_alone_rows;
  rows(x, begin, end, partial);
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(norm_rows);
HWY_EXPORT(norm_gradient_rows);

void norm_rows_fast(const NormArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(norm_rows))(args, begin, end);
}
void norm_gradient_rows_fast(const NormGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial) {
  dispatch(HWY_DISPATCH_TABLE(norm_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
