#include "ashlar/kernels/cpu/conv_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/conv_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

// The row of z of a token `steps` before t in the same segment.
template <typename Z, typename Args>
const Z* z_row(const Args& x, int64_t t, int64_t steps) {
  return reinterpret_cast<const Z*>(x.z.data()) + (t - steps) * x.z_stride;
}
// The row `steps` before a segment's first token, from its halo; null: before the document.
template <typename Args>
const float* halo_row(const Args& x, const ConvNeighbours& p, int64_t steps) {
  if (p.back + steps > p.position) return nullptr;
  return reinterpret_cast<const float*>(x.halo.data()) + (p.halo * 2 + 2 - steps) * x.C;
}

// Calls use(rows of z of token t and of the two before it): in z, or before it, in the halo.
template <typename Z, typename Args, typename Use>
HWY_INLINE void with_rows_of(const Args& x, const ConvNeighbours& p, int64_t t, Use use) {
  const Z* now = z_row<Z>(x, t, 0);
  if (p.back >= 2) return use(now, z_row<Z>(x, t, 1), z_row<Z>(x, t, 2));
  const ConvNeighbours first{0, 0, p.position - p.back, p.halo};  // of the segment
  if (p.back == 1) return use(now, z_row<Z>(x, t, 1), halo_row(x, first, 1));
  use(now, halo_row(x, first, 1), halo_row(x, first, 2));
}
template <typename Args, typename Use>
HWY_INLINE void with_rows(const Args& x, const ConvNeighbours& p, int64_t t, Use use) {
  x.z.dtype() == DType::kBF16 ? with_rows_of<bf16>(x, p, t, use)
                              : with_rows_of<float>(x, p, t, use);
}

template <typename Z, typename Count>
HWY_INLINE V load_or_zero(const Z* row, int64_t i, Count n) {
  return row ? load(row + i, n) : set(0);
}

constexpr int64_t kConvTokens = 4;  // that share rows, parameters and their gradients

// Tokens [t, t + kConvTokens) of a segment that also has the two before them.
template <typename Z>
HWY_INLINE void conv_block(const ConvArgs<float>& x, int64_t t) {
  const Z* first = z_row<Z>(x, t, 2);
  const int64_t C = x.C, stride = x.z_stride;
  bf16* low = x.columns.dtype() == DType::kBF16 ? rows_of<bf16*>(x.columns) : nullptr;
  float* full = rows_of<float*>(x.columns);
  const float *w0 = rows_of<const float*>(x.w0), *b0 = rows_of<const float*>(x.b0);
  for_lanes(C, [&](int64_t i, auto n) HWY_ATTR {
    const Pair w = load_pairs(w0 + 2 * i, n);
    const V bias = load(b0 + i, n);
    V before = load(first + stride + i, n);
    V u_before = hn::MulAdd(w.a, load(first + i, n), hn::MulAdd(w.b, before, bias));
    for (int64_t k = 0; k < kConvTokens; ++k) {
      const V now = load(first, (k + 2) * stride + i, n);
      const V u = hn::MulAdd(w.a, before, hn::MulAdd(w.b, now, bias));
      const int64_t to = 2 * ((t + k) * C + i);
      low ? store_pairs({u_before, u}, low, to, n) : store_pairs({u_before, u}, full, to, n);
      before = now, u_before = u;
    }
  });
}

void conv_row(const ConvArgs<float>& x, const ConvNeighbours& p, int64_t t) {
  with_rows(x, p, t, [&](auto z0, auto z1, auto z2) HWY_ATTR {
    for_lanes(x.C, [&](int64_t i, auto n) HWY_ATTR {
      const Pair w = load_pairs(x.w0, 2 * i, n);
      // z before the document is 0, so that u before it is b0.
      const V bias = load(x.b0, i, n), now = load(z0, i, n);
      const V before = load_or_zero(z1, i, n), oldest = load_or_zero(z2, i, n);
      const V u_before = hn::MulAdd(w.a, oldest, hn::MulAdd(w.b, before, bias));
      const V u = hn::MulAdd(w.a, before, hn::MulAdd(w.b, now, bias));
      store_pairs({u_before, u}, x.columns, 2 * (t * x.C + i), n);
    });
  });
}

void conv_rows(const ConvArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end;) {
    const ConvNeighbours p = neighbours_of(*x.sequence, t);
    if (p.back < 2 || p.ahead < kConvTokens - 1 || t + kConvTokens > end) {
      conv_row(x, p, t++);
      continue;
    }
    x.z.dtype() == DType::kBF16 ? conv_block<bf16>(x, t) : conv_block<float>(x, t);
    t += kConvTokens;
  }
}

template <typename Count>
HWY_INLINE void add_pairs(Pair v, float* to, Count n) {
  const Pair old = load_pairs(to, n);
  store_pairs({hn::Add(old.a, v.a), hn::Add(old.b, v.b)}, to, n);
}

// Adds what the columns of a segment's first token give to u of the token before: to b0 alone where
// a document starts, else to w0 and the halo too.  The halo's last token is also under the first
// token's own u.
void conv_border(const ConvGradientArgs<float>& x, const ConvNeighbours& p, int64_t t, float* dw0,
                 float* db0) {
  const float *z1 = halo_row(x, p, 1), *z2 = halo_row(x, p, 2);
  float* dhalo = p.halo < 0 ? nullptr : reinterpret_cast<float*>(x.dhalo.data()) + p.halo * 2 * x.C;
  for_lanes(x.C, [&](int64_t i, auto n) HWY_ATTR {
    const Pair now = load_pairs(x.dcolumns, 2 * (t * x.C + i), n);
    add_to(now.a, db0 + i, n);
    if (!dhalo) return;
    V du = now.b;
    if (p.ahead > 0) du = hn::Add(du, load_pairs(x.dcolumns, 2 * ((t + 1) * x.C + i), n).a);
    const Pair w = load_pairs(x.w0, 2 * i, n);
    add_pairs({hn::Mul(now.a, load_or_zero(z2, i, n)), hn::Mul(now.a, load(z1 + i, n))},
              dw0 + 2 * i, n);
    store(z2 ? hn::Mul(w.a, now.a) : set(0), dhalo + i, n);
    store(hn::MulAdd(w.b, now.a, hn::Mul(w.a, du)), dhalo + x.C + i, n);
  });
}

// Tokens [t, t + kConvTokens) of a segment that also has the one before and the two behind them.
// Rows: those of z, columns and their gradients.
template <typename Rows>
HWY_INLINE void conv_gradient_block(const ConvGradientArgs<float>& x, int64_t t, float* dw0,
                                    float* db0) {
  const int64_t C = x.C, stride = x.z_stride, dz_stride = x.dz_stride;
  const Rows z = rows_of<Rows>(x.z), dz = rows_of<Rows>(x.dz), dcolumns = rows_of<Rows>(x.dcolumns);
  const float* w0 = rows_of<const float*>(x.w0);
  for_lanes(C, [&](int64_t i, auto n) HWY_ATTR {
    const Pair w = load_pairs(w0 + 2 * i, n);
    Pair dw = load_pairs(dw0 + 2 * i, n);
    V db = load(db0 + i, n), before = load(z, (t - 1) * stride + i, n);
    Pair next = load_pairs(dcolumns, 2 * ((t + 1) * C + i), n);
    V du = hn::Add(load_pairs(dcolumns, 2 * (t * C + i), n).b, next.a);
    for (int64_t k = t; k < t + kConvTokens; ++k) {
      const Pair later = load_pairs(dcolumns, 2 * ((k + 2) * C + i), n);
      const V du_next = hn::Add(next.b, later.a), now = load(z, k * stride + i, n);
      const V sent = hn::MulAdd(w.a, du_next, load(dz, k * dz_stride + i, n));
      store(hn::MulAdd(w.b, du, sent), dz, k * dz_stride + i, n);
      db = hn::Add(db, du);
      dw = {hn::Add(dw.a, hn::Mul(du, before)), hn::Add(dw.b, hn::Mul(du, now))};
      before = now, next = later, du = du_next;
    }
    store_pairs(dw, dw0 + 2 * i, n);
    store(db, db0 + i, n);
  });
}

void conv_gradient_row(const ConvGradientArgs<float>& x, const ConvNeighbours& p, int64_t t,
                       float* dw0, float* db0) {
  const int64_t to = t * x.dz_stride;
  with_rows(x, p, t, [&](auto z0, auto z1, auto) HWY_ATTR {
    for_lanes(x.C, [&](int64_t i, auto n) HWY_ATTR {
      const Pair w = load_pairs(x.w0, 2 * i, n);
      V du = load_pairs(x.dcolumns, 2 * (t * x.C + i), n).b, sent = load(x.dz, to + i, n);
      if (p.ahead > 0) {
        const Pair next = load_pairs(x.dcolumns, 2 * ((t + 1) * x.C + i), n);
        V du_next = next.b;
        if (p.ahead > 1)
          du_next = hn::Add(du_next, load_pairs(x.dcolumns, 2 * ((t + 2) * x.C + i), n).a);
        du = hn::Add(du, next.a);
        sent = hn::MulAdd(w.a, du_next, sent);
      }
      store(hn::MulAdd(w.b, du, sent), x.dz, to + i, n);
      add_to(du, db0 + i, n);
      add_pairs({hn::Mul(du, load_or_zero(z1, i, n)), hn::Mul(du, load(z0, i, n))}, dw0 + 2 * i, n);
    });
  });
  if (p.back == 0) conv_border(x, p, t, dw0, db0);
}

void conv_gradient_rows(const ConvGradientArgs<float>& x, int64_t begin, int64_t end,
                        float* partial) {
  float *dw0 = partial, *db0 = partial + 2 * x.C;
  for (int64_t t = begin; t < end;) {
    const ConvNeighbours p = neighbours_of(*x.sequence, t);
    if (p.back < 1 || p.ahead < kConvTokens + 1 || t + kConvTokens > end) {
      conv_gradient_row(x, p, t++, dw0, db0);
      continue;
    }
    with_element_type({x.z, x.dz, x.dcolumns}, [&](auto rows) HWY_ATTR {
      conv_gradient_block<typename decltype(rows)::type>(x, t, dw0, db0);
    });
    t += kConvTokens;
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(conv_rows);
HWY_EXPORT(conv_gradient_rows);

void conv_rows_fast(const ConvArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(conv_rows))(args, begin, end);
}
void conv_gradient_rows_fast(const ConvGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial) {
  dispatch(HWY_DISPATCH_TABLE(conv_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
