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

template <int kPacks>
ASHLAR_KERNEL(kMaxThreads)
norm_forward_kernel(NormForward x) {
  const int64_t begin = int64_t(block_index()) * x.width;
  Pack h[kPacks];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = column_of(k);
    h[k] = load_pack(x.h, begin + c, {x.width - c, x.by_vectors});
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares = fma(h[k].at[i], h[k].at[i], squares);
  }
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
    for (int i = 0; i < kPack; ++i)
      y.at[i] = mul(add(x.weight_offset, w.at[i]), mul(h[k].at[i], rstd));
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
  if (x.dy_in.data) {
    const Pack more = load_pack(x.dy_in, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) p.dy.at[i] = add(p.dy.at[i], more.at[i]);
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) p.dy_w.at[i] = mul(p.dy.at[i], add(x.weight_offset, w.at[i]));
  return p;
}

ASHLAR_DEVICE void store_dh(const NormBackward& x, int64_t row, int64_t column, const NormPack& p,
                            float rstd, float mean) {
  const int64_t at = row * x.width + column;
  const Extent extent{x.width - column, x.by_vectors};
  Pack dh;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    dh.at[i] = mul(rstd, fma(-mul(p.h.at[i], rstd), mean, p.dy_w.at[i]));
  if (x.dh_in.data) {
    const Pack more = load_pack(x.dh_in, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) dh.at[i] = add(dh.at[i], more.at[i]);
  }
  store_pack(dh, x.dh, at, extent);
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

}  // namespace ashlar::device
