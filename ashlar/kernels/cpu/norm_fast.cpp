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

constexpr int64_t kNormTokens = 4;  // that share loads of parameters and of their gradients

// The types of a loop's pointers: to rows of products (o, y, dy, d_o), and of the stream.
template <typename ProductRows, typename StreamRows>
struct RowTypes {
  using Product = ProductRows;
  using Stream = StreamRows;
};

// The vector that rows of the stream hold once this one was stored in them.
template <typename Stream>
HWY_INLINE V as_stored(V v) {
  if constexpr (std::is_same_v<Stream, float*>) return v;
#if HWY_TARGET == HWY_AVX3_DL  // see store() in vector-inl.h
  else
    return V{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(v)), 16))};
#else
  else
    return hn::BitCast(D(), hn::And(rounded_bits(v), hn::Set(DU(), 0xffff0000u)));
#endif
}

const float* floats(const Cells<float>& cells) {
  return rows_of<const float*>(cells);
}

// Vector i of what normed rows are multiplied by.
template <typename Count>
HWY_INLINE V weight(const float* w, V offset, int64_t i, Count n) {
  return hn::Add(offset, load(w + i, n));
}

// The summands of a merge, in pointers of the loop's own.  Rows: RowTypes, here as below.
template <typename Rows>
struct Summands {
  template <typename Args>
  explicit Summands(const Args& x)
      : o(rows_of<typename Rows::Product>(x.o)),
        r(rows_of<typename Rows::Stream>(x.r)),
        ao(floats(x.ao)),
        bo(floats(x.bo)),
        ar(floats(x.ar)),
        br(floats(x.br)),
        alpha(set(float(x.factors.alpha))),
        beta(set(float(x.factors.beta))) {}
  typename Rows::Product o;
  typename Rows::Stream r;
  const float *ao, *bo, *ar, *br;
  V alpha, beta;
};

// Vector i of a row of the merge's result, and its two summands before their scales.
struct Merged {
  V o, r, h;
};
// Vector i of the parameters.
struct Scales {
  V ao, bo, ar, br;
};
template <typename Rows, typename Count>
HWY_INLINE Scales scales(const Summands<Rows>& x, int64_t i, Count n) {
  return {load(x.ao + i, n), load(x.bo + i, n), load(x.ar + i, n), load(x.br + i, n)};
}
template <typename Rows, typename Count>
HWY_INLINE Merged merge(const Summands<Rows>& x, const Scales& p, int64_t at, Count n) {
  const V o = hn::Add(load(x.o, at, n), p.bo), r = hn::Add(load(x.r, at, n), p.br);
  return {o, r, hn::MulAdd(o, p.ao, hn::Mul(r, p.ar))};
}
// The same of a merge without parameters, of o and what is added to it.
template <typename Rows, typename Count>
HWY_INLINE V sum_of(const Summands<Rows>& x, int64_t at, V residual, Count n) {
  return hn::MulAdd(load(x.o, at, n), x.beta, hn::Mul(residual, x.alpha));
}
template <typename Rows, typename Count>
HWY_INLINE V plain_merge(const Summands<Rows>& x, int64_t at, Count n) {
  return sum_of(x, at, load(x.r, at, n), n);
}

// Fills row t of h with hidden(i, n); returns the sum of the squares of what it then holds.
template <typename Stream, typename Hidden>
HWY_INLINE float merged_row(Stream h, int64_t row, int64_t H, Hidden hidden) {
  V squares = set(0);
  for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
    const V v = as_stored<Stream>(hidden(i, n));
    store(v, h, row + i, n);
    squares = hn::MulAdd(v, v, squares);
  });
  return sum_of_lanes(squares);
}

template <typename Rows>
void norm_rows_of(const NormArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t H = x.H;
  const Summands<Rows> from(x);
  const auto y = rows_of<typename Rows::Product>(x.y);
  const float *w = floats(x.w), *v = floats(x.v), *rstd_r = floats(x.rstd_r);
  const auto h = rows_of<typename Rows::Stream>(x.h);
  const bool merges = bool(x.o), plain = !x.ao;
  const V offset = set(float(x.weight_offset));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * H;
    float squares = 0;
    if (v) {  // r is normed, as the norm before the branch made it
      const V scale = set(rstd_r[t]);
      squares = merged_row(h, row, H, [&](int64_t i, auto n) HWY_ATTR {
        return sum_of(from, row + i,
                      hn::Mul(weight(v, offset, i, n), hn::Mul(load(from.r, row + i, n), scale)),
                      n);
      });
    } else if (merges && plain) {
      squares = merged_row(
          h, row, H, [&](int64_t i, auto n) HWY_ATTR { return plain_merge(from, row + i, n); });
    } else if (merges) {
      squares = merged_row(h, row, H, [&](int64_t i, auto n) HWY_ATTR {
        return merge(from, scales(from, i, n), row + i, n).h;
      });
    } else {
      V sum = set(0);
      for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
        const V own = load(h, row + i, n);
        sum = hn::MulAdd(own, own, sum);
      });
      squares = sum_of_lanes(sum);
    }
    if (!w) continue;
    const float rstd = 1.0f / std::sqrt(squares / float(H) + float(x.eps));
    x.rstd.set(t, rstd);
    for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
      const V scaled = hn::Mul(load(h + row + i, n), set(rstd));
      store(hn::Mul(weight(w, offset, i, n), scaled), y, row + i, n);
    });
  }
}

// The tensors of a norm's backward pass, in pointers of the loop's own.
template <typename Rows>
struct Gradients {
  using Product = typename Rows::Product;
  using Stream = typename Rows::Stream;
  explicit Gradients(const NormGradientArgs<float>& x)
      : H(x.H),
        from(x),
        dy(rows_of<Product>(x.dy)),
        d_o(rows_of<Product>(x.d_o)),
        dh_in(rows_of<Stream>(x.dh_in)),
        dy_in(rows_of<Stream>(x.dy_in)),
        h(rows_of<Stream>(x.h)),
        rstd(floats(x.rstd)),
        w(floats(x.w)),
        dr(rows_of<Stream>(x.dr)),
        offset(set(float(x.weight_offset))) {}
  int64_t H;
  Summands<Rows> from;
  Product dy, d_o;
  Stream dh_in, dy_in, h;
  const float *rstd, *w;
  Stream dr;
  V offset;
};

// All that reached y.
template <typename Rows, typename Count>
HWY_INLINE V gradient_of_y(const Gradients<Rows>& x, int64_t at, Count n) {
  const V dy = load(x.dy, at, n);
  return x.dy_in ? hn::Add(dy, load(x.dy_in, at, n)) : dy;
}

// mean(dy w h) rstd of a token.
template <typename Rows, typename Hidden>
HWY_INLINE float mean_along(const Gradients<Rows>& x, int64_t t, Hidden hidden) {
  V sum = set(0);
  for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
    const V dy = gradient_of_y(x, t * x.H + i, n);
    sum = hn::MulAdd(hn::Mul(dy, weight(x.w, x.offset, i, n)), hidden(t, i, n), sum);
  });
  return sum_of_lanes(sum) * x.rstd[t] / float(x.H);
}

// Vector i of the gradient of the norm alone, with what else reached h, of a token whose row of h
// has the vector h, rounded as the stream holds it; adds to dw.
template <typename Rows, typename Count>
HWY_INLINE V norm_gradient(const Gradients<Rows>& x, int64_t at, V h, V w, float rstd, float mean,
                           V& dw, Count n) {
  const V dy = gradient_of_y(x, at, n), normed = hn::Mul(h, set(rstd));
  dw = hn::Add(dw, hn::Mul(dy, normed));
  const V along = hn::NegMulAdd(normed, set(mean), hn::Mul(dy, w));
  const V dh = hn::Mul(set(rstd), along);
  const V all = x.dh_in ? hn::Add(dh, load(x.dh_in, at, n)) : dh;
  return as_stored<typename Rows::Stream>(all);
}

// Takes kTokens tokens from t on through the norm: their rows of h are hidden(t, i, n), and
// write(dh, at, n) takes the gradients.  The sum dw is loaded and stored once for all of them.
template <int64_t kTokens, typename Rows, typename Hidden, typename Write>
HWY_INLINE void norm_tokens(const Gradients<Rows>& x, int64_t t, float* dw, Hidden hidden,
                            Write write) {
  float mean[kTokens];
  for (int64_t k = 0; k < kTokens; ++k) mean[k] = mean_along(x, t + k, hidden);
  for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
    const V w = weight(x.w, x.offset, i, n);
    V sum = load(dw + i, n);
    for (int64_t k = 0; k < kTokens; ++k) {
      const int64_t at = (t + k) * x.H + i;
      const V h = hidden(t + k, i, n);
      write(norm_gradient(x, at, h, w, x.rstd[t + k], mean[k], sum, n), at, n);
    }
    store(sum, dw + i, n);
  });
}

template <typename Rows>
void rms_rows(const NormGradientArgs<float>& args, int64_t begin, int64_t end, float* dw) {
  const Gradients<Rows> x(args);
  const auto hidden = [&](int64_t t, int64_t i, auto n)
                          HWY_ATTR { return load(x.h, t * x.H + i, n); };
  const auto write = [&](V dh, int64_t at, auto n) HWY_ATTR { store(dh, x.dr, at, n); };
  int64_t t = begin;
  for (; t + kNormTokens <= end; t += kNormTokens)
    norm_tokens<kNormTokens>(x, t, dw, hidden, write);
  for (; t < end; ++t) norm_tokens<1>(x, t, dw, hidden, write);
}

// Stores both gradients of a merge without parameters.
template <typename Rows, typename Count>
HWY_INLINE void store_summands(const Gradients<Rows>& x, int64_t at, V dh, Count n) {
  store(hn::Mul(dh, x.from.beta), x.d_o, at, n);
  store(hn::Mul(dh, x.from.alpha), x.dr, at, n);
}

template <typename Rows>
void plain_merge_rows(const NormGradientArgs<float>& args, int64_t begin, int64_t end, float* dw) {
  const Gradients<Rows> x(args);
  const auto hidden = [&](int64_t t, int64_t i, auto n) HWY_ATTR {
    if (x.h) return load(x.h, t * x.H + i, n);
    return as_stored<typename Rows::Stream>(plain_merge(x.from, t * x.H + i, n));
  };
  const auto write = [&](V dh, int64_t at, auto n) HWY_ATTR { store_summands(x, at, dh, n); };
  int64_t t = begin;
  for (; t + kNormTokens <= end; t += kNormTokens)
    norm_tokens<kNormTokens>(x, t, dw, hidden, write);
  for (; t < end; ++t) norm_tokens<1>(x, t, dw, hidden, write);
}

// Sums over tokens of a merge with parameters; dbo holds the sum of dh until all are done.
struct MergeSums {
  float *dw, *dao, *dbo, *dar, *dbr;
};

template <bool kNormed, int64_t kTokens, typename Rows>
HWY_INLINE void merge_tokens(const Gradients<Rows>& x, int64_t t, const MergeSums& sums) {
  float mean[kTokens];
  if constexpr (kNormed) {
    for (int64_t k = 0; k < kTokens; ++k)
      mean[k] = mean_along(x, t + k, [&](int64_t row, int64_t i, auto n) HWY_ATTR {
        const int64_t at = row * x.H + i;
        if (x.h) return load(x.h, at, n);
        return as_stored<typename Rows::Stream>(merge(x.from, scales(x.from, i, n), at, n).h);
      });
  }
  for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
    const Scales p = scales(x.from, i, n);
    V w = p.ao, dw = p.ao;
    if constexpr (kNormed) w = weight(x.w, x.offset, i, n), dw = load(sums.dw + i, n);
    V dao = load(sums.dao + i, n), dar = load(sums.dar + i, n), dbo = load(sums.dbo + i, n);
    for (int64_t k = 0; k < kTokens; ++k) {
      const int64_t at = (t + k) * x.H + i;
      const Merged m = merge(x.from, p, at, n);
      V dh;
      if constexpr (kNormed)
        dh = norm_gradient(x, at, as_stored<typename Rows::Stream>(m.h), w, x.rstd[t + k], mean[k],
                           dw, n);
      else
        dh = load(x.dh_in, at, n);
      dao = hn::Add(dao, hn::Mul(dh, m.o));
      dar = hn::Add(dar, hn::Mul(dh, m.r));
      dbo = hn::Add(dbo, dh);
      store(hn::Mul(dh, p.ao), x.d_o, at, n);
      store(hn::Mul(dh, p.ar), x.dr, at, n);
    }
    if constexpr (kNormed) store(dw, sums.dw + i, n);
    store(dao, sums.dao + i, n), store(dar, sums.dar + i, n), store(dbo, sums.dbo + i, n);
  });
}

template <bool kNormed, typename Rows>
void merge_rows(const NormGradientArgs<float>& args, int64_t begin, int64_t end, float* partial) {
  const Gradients<Rows> x(args);
  const int64_t H = x.H;
  float* dao = kNormed ? partial + H : partial;
  const MergeSums sums{partial, dao, dao + H, dao + 2 * H, dao + 3 * H};
  int64_t t = begin;
  for (; t + kNormTokens <= end; t += kNormTokens) merge_tokens<kNormed, kNormTokens>(x, t, sums);
  for (; t < end; ++t) merge_tokens<kNormed, 1>(x, t, sums);
  for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
    const V sum = load(sums.dbo + i, n);
    store(hn::Mul(sum, load(x.from.ar + i, n)), sums.dbr + i, n);
    store(hn::Mul(sum, load(x.from.ao + i, n)), sums.dbo + i, n);
  });
}

// The gradient of the merge alone is dh_in.
template <typename Rows>
void plain_merge_alone_rows(const NormGradientArgs<float>& args, int64_t begin, int64_t end) {
  const Gradients<Rows> x(args);
  for (int64_t row = begin * x.H; row < end * x.H; row += x.H)
    for_lanes(x.H, [&](int64_t i, auto n)
                       HWY_ATTR { store_summands(x, row + i, load(x.dh_in, row + i, n), n); });
}

template <typename Rows>
void norm_gradient_rows_of(const NormGradientArgs<float>& x, int64_t begin, int64_t end,
                           float* partial) {
  if (!x.d_o) return rms_rows<Rows>(x, begin, end, partial);
  if (x.w && x.ao) return merge_rows<true, Rows>(x, begin, end, partial);
  if (x.w) return plain_merge_rows<Rows>(x, begin, end, partial);
  if (x.ao) return merge_rows<false, Rows>(x, begin, end, partial);
  plain_merge_alone_rows<Rows>(x, begin, end);
}

// Calls use(std::type_identity<RowTypes<..>>()) for tensors of products and one of the stream.
template <typename Use>
HWY_INLINE void with_row_types(std::initializer_list<Cells<float>> products,
                               const Cells<float>& stream, Use use) {
  with_element_type(products, [&](auto rows) HWY_ATTR {
    using Product = typename decltype(rows)::type;
    if (stream.dtype() != DType::kBF16) return use(std::type_identity<RowTypes<Product, float*>>());
    // Products in fp32 beside a bf16 stream are rare: the input of a head in fp32.
    constexpr bool kRare = std::is_same_v<Product, float*>;
    use(std::type_identity<RowTypes<std::conditional_t<kRare, Cells<float>, Product>, bf16*>>());
  });
}

void norm_rows(const NormArgs<float>& x, int64_t begin, int64_t end) {
  with_row_types({x.o, x.y}, x.h, [&](auto rows) HWY_ATTR {
    norm_rows_of<typename decltype(rows)::type>(x, begin, end);
  });
}

void norm_gradient_rows(const NormGradientArgs<float>& x, int64_t begin, int64_t end,
                        float* partial) {
  with_row_types({x.dy, x.o, x.d_o}, x.dr, [&](auto rows) HWY_ATTR {
    norm_gradient_rows_of<typename decltype(rows)::type>(x, begin, end, partial);
  });
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
