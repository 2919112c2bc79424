// norm.h: a block has a row, and a thread packs of it, in registers.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kRoom = kMaxThreads / kLanes;  // floats that a sum over the block takes

// The columns of one of the thread's packs.
ASHLAR_DEVICE int64_t column_of(int pack) {
  return (int64_t(pack) * block_size() + thread_index()) * kPack;
}

ASHLAR_DEVICE Pack sums(const Pack& a, const Pack& b) {
  Pack sum;
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.at[i] = add(a.at[i], b.at[i]);
  return sum;
}
// As norms make it.
ASHLAR_DEVICE float normed(float h, float w, float weight_offset, float rstd) {
  return mul(add(weight_offset, w), mul(h, rstd));
}

// One pack of a row of a merge, not yet rounded.
ASHLAR_DEVICE Pack merged(const Merge& x, int64_t row, int64_t at, int64_t column,
                          float weight_offset, const Extent& extent) {
  const Pack o = load_pack(x.o, at, extent);
  Pack r = load_pack(x.r, at, extent), h;
  if (x.ao) {
    const Pack ao = load_pack(x.ao, column, extent), ar = load_pack(x.ar, column, extent);
    const Pack hidden = sums(o, load_pack(x.bo, column, extent));
    const Pack residual = sums(r, load_pack(x.br, column, extent));
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      h.at[i] = fma(hidden.at[i], ao.at[i], mul(residual.at[i], ar.at[i]));
    return h;
  }
  if (x.r_norm) {
    const Pack w = load_pack(x.r_norm, column, extent);
    const float rstd = x.r_rstd[row];
#pragma unroll
    for (int i = 0; i < kPack; ++i) r.at[i] = normed(r.at[i], w.at[i], weight_offset, rstd);
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) h.at[i] = fma(x.beta, o.at[i], mul(x.alpha, r.at[i]));
  return h;
}

ASHLAR_DEVICE Pack as_stored(const Elements& elements, const Pack& from) {
  Pack pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) pack.at[i] = as_stored(elements, from.at[i]);
  return pack;
}

template <int kPacks>
ASHLAR_KERNEL(kMaxThreads)
norm_forward_kernel(NormForward x) {
  const int64_t begin = int64_t(block_index()) * x.width;
  Pack h[kPacks];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = column_of(k);
    const Extent extent{x.width - c, x.by_vectors};
    if (x.merge.o.data) {
      h[k] = merged(x.merge, block_index(), begin + c, c, x.weight_offset, extent);
      h[k] = as_stored(x.h, h[k]);
      store_pack(h[k], x.h, begin + c, extent);
    } else {
      h[k] = load_pack(x.h, begin + c, extent);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares = fma(h[k].at[i], h[k].at[i], squares);
  }
  if (!x.w) return;  // the merge alone
  const float mean = div(block_sum(squares, (float*)shared_memory()), float(x.width));
  const float rstd = div(1.0f, sqrt(add(mean, x.eps)));
  if (thread_index() == 0) x.rstd[block_index()] = rstd;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = column_of(k);
    const Extent extent{x.width - c, x.by_vectors};
    const Pack w = load_pack(x.w, c, extent);
    Pack y;
#pragma unroll
    for (int i = 0; i < kPack; ++i) y.at[i] = normed(h[k].at[i], w.at[i], x.weight_offset, rstd);
    store_pack(y, x.y, begin + c, extent);
  }
}

// One pack of a row in backward: dy (c + w), where dy is all that reached y, and h.
struct NormPack {
  Pack dy, dy_w, h;
};
ASHLAR_DEVICE NormPack load_norm_pack(const NormBackward& x, int64_t row, int64_t column) {
  const int64_t at = row * x.width + column;
  const Extent extent{x.width - column, x.by_vectors};
  NormPack p{.dy = load_pack(x.dy, at, extent), .dy_w = {}, .h = load_pack(x.h, at, extent)};
  const Pack w = load_pack(x.w, column, extent);
  if (x.dy_in.data) p.dy = sums(p.dy, load_pack(x.dy_in, at, extent));
#pragma unroll
  for (int i = 0; i < kPack; ++i) p.dy_w.at[i] = mul(p.dy.at[i], add(x.weight_offset, w.at[i]));
  return p;
}

ASHLAR_DEVICE Pack scaled(const Pack& x, float factor) {
  Pack pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) pack.at[i] = mul(factor, x.at[i]);
  return pack;
}

// Stores what becomes of dh of one pack, rounded as the stream holds it.
ASHLAR_DEVICE void store_dh(const NormBackward& x, int64_t row, int64_t column, const NormPack& p,
                            float rstd, float mean) {
  const int64_t at = row * x.width + column;
  const Extent extent{x.width - column, x.by_vectors};
  Pack dh;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    dh.at[i] = mul(rstd, fma(-mul(p.h.at[i], rstd), mean, p.dy_w.at[i]));
  if (x.dh_in.data) dh = sums(dh, load_pack(x.dh_in, at, extent));
  if (x.d_o.data) {
    dh = as_stored(x.dr, dh);
    store_pack(scaled(dh, x.beta), x.d_o, at, extent);
    dh = scaled(dh, x.alpha);
  }
  store_pack(dh, x.dr, at, extent);
}

// A block has kPartialRows rows; sums over the row alternate between two rooms, so that one barrier
// a row is enough: before a room is used again, all have passed the barrier of the other.
template <int kPacks>
ASHLAR_KERNEL(kMaxThreads)
norm_backward_kernel(NormBackward x) {
  auto* rooms = (float*)shared_memory();
  Pack dw[kPacks] = {};
  const int64_t first = int64_t(block_index()) * kPartialRows;
  const int64_t end = first + kPartialRows < x.rows ? first + kPartialRows : x.rows;
  for (int64_t row = first; row < end; ++row) {
    const float rstd = x.rstd[row];
    NormPack held[kPacks];
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const NormPack p = load_norm_pack(x, row, column_of(k));
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        dw[k].at[i] = fma(p.dy.at[i], mul(p.h.at[i], rstd), dw[k].at[i]);
        dot = fma(p.dy_w.at[i], p.h.at[i], dot);
      }
      held[k] = p;
    }
    dot = block_sum(dot, rooms + row % 2 * kRoom);
    const float mean = div(mul(dot, rstd), float(x.width));
#pragma unroll
    for (int k = 0; k < kPacks; ++k) store_dh(x, row, column_of(k), held[k], rstd, mean);
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = column_of(k);
    store_pack(dw[k], x.partials, block_index() * x.width + c, {x.width - c, x.by_vectors});
  }
}

// Adds the share of a row to the gradients of ao, of ar, and of what bo and br have in common.
struct MergeSums {
  Pack dao = {}, dar = {}, dh = {};
};
ASHLAR_DEVICE void add_row(MergeSums& sum, const Pack& dh, const Pack& hidden,
                           const Pack& residual) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    sum.dao.at[i] = fma(dh.at[i], hidden.at[i], sum.dao.at[i]);
    sum.dar.at[i] = fma(dh.at[i], residual.at[i], sum.dar.at[i]);
    sum.dh.at[i] = add(sum.dh.at[i], dh.at[i]);
  }
}
ASHLAR_DEVICE Pack products(const Pack& a, const Pack& b) {
  Pack product;
#pragma unroll
  for (int i = 0; i < kPack; ++i) product.at[i] = mul(a.at[i], b.at[i]);
  return product;
}

ASHLAR_KERNEL(kColumnThreads) merge_backward_kernel(MergeBackward x) {
  const ColumnPart part = column_part(x.rows, x.width);
  const int64_t c = part.column;
  if (c >= x.width) return;
  const Extent extent{x.width - c, x.by_vectors};
  if (!x.merge.ao) {
    for (int64_t row = part.first; row < part.end; ++row) {
      const int64_t at = row * x.width + c;
      const Pack dh = load_pack(x.dh, at, extent);
      store_pack(scaled(dh, x.merge.beta), x.d_o, at, extent);
      store_pack(scaled(dh, x.merge.alpha), x.dr, at, extent);
    }
    return;
  }
  const Pack ao = load_pack(x.merge.ao, c, extent), bo = load_pack(x.merge.bo, c, extent);
  const Pack ar = load_pack(x.merge.ar, c, extent), br = load_pack(x.merge.br, c, extent);
  MergeSums sum;
  for (int64_t row = part.first; row < part.end; ++row) {
    const int64_t at = row * x.width + c;
    const Pack dh = load_pack(x.dh, at, extent);
    add_row(sum, dh, sums(load_pack(x.merge.o, at, extent), bo),
            sums(load_pack(x.merge.r, at, extent), br));
    store_pack(products(dh, ao), x.d_o, at, extent);
    store_pack(products(dh, ar), x.dr, at, extent);
  }
  const int64_t partials = (x.rows + kPartialRows - 1) / kPartialRows;
  const Pack gradients[] = {sum.dao, products(sum.dh, ao), sum.dar, products(sum.dh, ar)};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_pack(gradients[i], x.partials, (i * partials + part.partial) * x.width + c, extent);
}

// Calls use(constant) with the number of packs of a thread.
template <typename Use>
std::string with_packs(int64_t width, Use use) {
  if (width <= kMaxThreads * kPack) return use(std::integral_constant<int, 1>());
  if (width <= kMaxRowWidth) return use(std::integral_constant<int, 2>());
  return "a row of " + std::to_string(width) + " elements";
}
static_assert(kMaxRowWidth == 2 * kMaxThreads * kPack);

int num_threads(int64_t width) {
  const int64_t packs = (width + kPack - 1) / kPack, groups = (packs + kLanes - 1) / kLanes;
  return groups < kMaxThreads / kLanes ? int(groups) * kLanes : kMaxThreads;
}

}  // namespace

std::string launch(const NormForward& x) {
  return with_packs(x.width, [&](auto packs) {
    return run(norm_forward_kernel<packs()>,
               {x.rows, num_threads(x.width), kRoom * int(sizeof(float))}, x);
  });
}

std::string launch(const NormBackward& x) {
  return with_packs(x.width, [&](auto packs) {
    return run(norm_backward_kernel<packs()>,
               {(x.rows + kPartialRows - 1) / kPartialRows, num_threads(x.width),
                2 * kRoom * int(sizeof(float))},
               x);
  });
}

std::string launch(const MergeBackward& x) {
  return run(merge_backward_kernel, {blocks_for_columns(x.rows, x.width), kColumnThreads, 0}, x);
}

}  // namespace ashlar::device
