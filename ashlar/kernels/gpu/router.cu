// router.h: 32 lanes have a row; gradients of vectors are sums of a second launch, over what the
// first one stored.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/row_lanes.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

// One pack of down + b (+ gamma r_prev).
ASHLAR_DEVICE Pack mixed(const RouterMixForward& x, int64_t at, int64_t column,
                         const Extent& extent) {
  Pack r = load_pack(x.r, at, extent), more = load_pack(x.b, column, extent);
  if (x.gamma) {
    const Pack gamma = load_pack(x.gamma, column, extent);
    const Pack r_prev = load_pack(x.r_prev, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) more.at[i] = fma(gamma.at[i], r_prev.at[i], more.at[i]);
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) r.at[i] = add(r.at[i], more.at[i]);
  return r;
}

ASHLAR_KERNEL(kRowThreads) router_mix_forward_kernel(RouterMixForward x) {
  const int64_t row = row_of_lanes(), begin = row * x.width;
  if (row >= x.rows) return;
  float squares = 0;
  for_packs_of_lane(x.width, x.by_vectors, [&](int64_t c, const Extent& extent) {
    const Pack r = mixed(x, begin + c, c, extent);
    store_pack(r, x.r, begin + c, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares = fma(r.at[i], r.at[i], squares);
  });
  const float mean = div(lane_sum(squares), float(x.width));
  const float rstd = div(1.0f, sqrt(add(mean, x.eps)));
  if (thread_index() % kLanes == 0) x.rstd[row] = rstd;
  for_packs_of_lane(x.width, x.by_vectors, [&](int64_t c, const Extent& extent) {
    const Pack r = load_pack(x.r, begin + c, extent), w = load_pack(x.w, c, extent);
    Pack n;
#pragma unroll
    for (int i = 0; i < kPack; ++i) n.at[i] = mul(w.at[i], mul(r.at[i], rstd));
    store_pack(n, x.n, begin + c, extent);
  });
}

// One pack of dn w.
ASHLAR_DEVICE Pack weighted(const RouterMixBackward& x, int64_t at, int64_t column,
                            const Extent& extent) {
  Pack dn = load_pack(x.dn, at, extent);
  const Pack w = load_pack(x.w, column, extent);
#pragma unroll
  for (int i = 0; i < kPack; ++i) dn.at[i] = mul(dn.at[i], w.at[i]);
  return dn;
}

ASHLAR_KERNEL(kRowThreads) router_mix_backward_kernel(RouterMixBackward x) {
  const int64_t row = row_of_lanes(), begin = row * x.width;
  if (row >= x.rows) return;
  const float rstd = x.rstd[row];
  float dot = 0;
  for_packs_of_lane(x.width, x.by_vectors, [&](int64_t c, const Extent& extent) {
    const Pack dn_w = weighted(x, begin + c, c, extent), r = load_pack(x.r, begin + c, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) dot = fma(dn_w.at[i], r.at[i], dot);
  });
  // The part of dn w along r, to which the norm is blind.
  const float mean = div(mul(lane_sum(dot), rstd), float(x.width));
  for_packs_of_lane(x.width, x.by_vectors, [&](int64_t c, const Extent& extent) {
    const int64_t at = begin + c;
    const Pack dn_w = weighted(x, at, c, extent), r = load_pack(x.r, at, extent);
    Pack dr, next = {};
    if (x.dr_next) next = load_pack(x.dr_next, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float own = mul(rstd, fma(-mul(r.at[i], rstd), mean, dn_w.at[i]));
      dr.at[i] = add(own, next.at[i]);
    }
    store_pack(dr, x.dr, at, extent);
    if (x.dr_low.data) store_pack(dr, x.dr_low, at, extent);
    if (!x.gamma) return;
    const Pack gamma = load_pack(x.gamma, c, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) dr.at[i] = mul(gamma.at[i], dr.at[i]);
    store_pack(dr, x.dr_prev, at, extent);
  });
}

ASHLAR_KERNEL(kColumnThreads) router_mix_sums_kernel(RouterMixSums x) {
  const ColumnPart part = column_part(x.rows, x.width);
  if (part.column >= x.width) return;
  const Extent extent{x.width - part.column, x.by_vectors};
  Pack db = {}, dw = {}, dgamma = {};
  for (int64_t row = part.first; row < part.end; ++row) {
    const int64_t at = row * x.width + part.column;
    const float rstd = x.rstd[row];
    const Pack dr = load_pack(x.dr, at, extent), dn = load_pack(x.dn, at, extent);
    const Pack r = load_pack(x.r, at, extent);
    Pack r_prev = {};
    if (x.r_prev) r_prev = load_pack(x.r_prev, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      db.at[i] = add(db.at[i], dr.at[i]);
      dw.at[i] = fma(dn.at[i], mul(r.at[i], rstd), dw.at[i]);
      dgamma.at[i] = fma(dr.at[i], r_prev.at[i], dgamma.at[i]);
    }
  }
  const int64_t partials = (x.rows + kPartialRows - 1) / kPartialRows;
  const auto store = [&](const Pack& sum, int64_t number) {
    store_pack(sum, x.partials, (number * partials + part.partial) * x.width + part.column, extent);
  };
  store(db, 0), store(dw, 1);
  if (x.r_prev) store(dgamma, 2);
}

constexpr float kRootOfHalf = 0.707106781f, kRootOfHalfOverPi = 0.398942280f;

// The share of a normal distribution below x.
ASHLAR_DEVICE float normal_share(float x) {
  return fma(0.5f, erf(mul(x, kRootOfHalf)), 0.5f);
}
ASHLAR_DEVICE float gelu_slope(float x) {
  const float density = mul(exp(mul(mul(x, x), -0.5f)), kRootOfHalfOverPi);
  return fma(x, density, normal_share(x));
}

ASHLAR_KERNEL(kEachThreads) bias_gelu_forward_kernel(BiasGeluForward x) {
  for_each_of_block(x.rows * packs_of(x.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, x.rows, x.width, x.by_vectors);
    const int64_t at = p.row * x.width + p.column;
    const Pack z = load_pack(x.z, at, p.extent), b = load_pack(x.b, p.column, p.extent);
    Pack s;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const float sum = add(z.at[j], b.at[j]);
      s.at[j] = mul(sum, normal_share(sum));
    }
    store_pack(s, x.s, at, p.extent);
  });
}

ASHLAR_KERNEL(kColumnThreads) bias_gelu_backward_kernel(BiasGeluBackward x) {
  const ColumnPart part = column_part(x.rows, x.width);
  if (part.column >= x.width) return;
  const Extent extent{x.width - part.column, x.by_vectors};
  const Pack b = load_pack(x.b, part.column, extent);
  Pack db = {};
  for (int64_t row = part.first; row < part.end; ++row) {
    const int64_t at = row * x.width + part.column;
    const Pack ds = load_pack(x.ds, at, extent), z = load_pack(x.z, at, extent);
    Pack dz;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      dz.at[i] = mul(ds.at[i], gelu_slope(add(z.at[i], b.at[i])));
      db.at[i] = add(db.at[i], dz.at[i]);
    }
    store_pack(dz, x.dz, at, extent);
  }
  store_pack(db, x.partials, part.partial * x.width + part.column, extent);
}

// A lane looks at every 32nd class.  Its best is the lowest of those with the largest biased
// probability; NaN is below all others, so that some class is always chosen.
ASHLAR_KERNEL(kRowThreads) router_select_forward_kernel(RouterSelectForward x) {
  const int64_t row = row_of_lanes(), begin = row * x.classes;
  if (row >= x.rows) return;
  const int lane = thread_index() % kLanes;
  const float below_all = bits_to_float(0xff800000u);  // minus infinity
  float largest = below_all, sum = 0, best_value = below_all;
  for (int i = lane; i < x.classes; i += kLanes) {
    const float logit = x.logits[begin + i];
    if (logit > largest) largest = logit;
  }
  largest = lane_max(largest);
  for (int i = lane; i < x.classes; i += kLanes)
    sum = add(sum, exp(add(x.logits[begin + i], -largest)));
  sum = lane_sum(sum);
  int best = lane < x.classes ? lane : x.classes;
  for (int i = lane; i < x.classes; i += kLanes) {
    const float p = div(exp(add(x.logits[begin + i], -largest)), sum);
    x.p[begin + i] = p;
    const float biased = add(p, x.bias[i]);
    if (biased > best_value) best_value = biased, best = i;
  }
  const int chosen = lane_min(best_value == lane_max(best_value) ? best : x.classes);
  if (chosen % kLanes != lane) return;
  x.expert[row] = chosen;
  x.weight[row] = x.p[begin + chosen];
}

ASHLAR_KERNEL(kRowThreads) router_select_backward_kernel(RouterSelectBackward x) {
  const int64_t row = row_of_lanes(), begin = row * x.classes;
  if (row >= x.rows) return;
  const int chosen = x.expert[row];
  const bool padding = chosen < 0;
  const float scale = padding ? 0.0f : mul(x.dweight[row], x.p[begin + chosen]);
  for (int i = thread_index() % kLanes; i < x.classes; i += kLanes) {
    const float slope = add(i == chosen ? 1.0f : 0.0f, -x.p[begin + i]);
    store_element(padding ? 0.0f : mul(scale, slope), x.dlogits, begin + i);
  }
}

}  // namespace

std::string launch(const RouterMixForward& x) {
  return run(router_mix_forward_kernel, {blocks_for_rows(x.rows), kRowThreads, 0}, x);
}
std::string launch(const RouterMixBackward& x) {
  return run(router_mix_backward_kernel, {blocks_for_rows(x.rows), kRowThreads, 0}, x);
}
std::string launch(const RouterMixSums& x) {
  return run(router_mix_sums_kernel, {blocks_for_columns(x.rows, x.width), kColumnThreads, 0}, x);
}
std::string launch(const BiasGeluForward& x) {
  return run(bias_gelu_forward_kernel,
             {blocks_for_each(x.rows * packs_of(x.width)), kEachThreads, 0}, x);
}
std::string launch(const BiasGeluBackward& x) {
  return run(bias_gelu_backward_kernel, {blocks_for_columns(x.rows, x.width), kColumnThreads, 0},
             x);
}
std::string launch(const RouterSelectForward& x) {
  return run(router_select_forward_kernel, {blocks_for_rows(x.rows), kRowThreads, 0}, x);
}
std::string launch(const RouterSelectBackward& x) {
  return run(router_select_backward_kernel, {blocks_for_rows(x.rows), kRowThreads, 0}, x);
}

}  // namespace ashlar::device
