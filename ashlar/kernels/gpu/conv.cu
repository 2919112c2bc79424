// conv.h: a thread has a pack of channels of kPartialRows rows, and keeps what neighbouring rows
// share.  ashlar/kernels/cpu/conv.cpp explains the gradients.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

// Both taps of a pack of channels, which lie interleaved in memory.
struct Taps {
  Pack old, now;
};
ASHLAR_DEVICE Extent half_extent(const Extent& extent, int half) {
  return {2 * extent.count - half * kPack, extent.by_vectors};
}
ASHLAR_DEVICE Taps load_taps(const Elements& from, int64_t at, const Extent& extent) {
  Taps taps;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Pack pack = load_pack(from, at + half * kPack, half_extent(extent, half));
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) {
      taps.old.at[half * kPack / 2 + i] = pack.at[2 * i];
      taps.now.at[half * kPack / 2 + i] = pack.at[2 * i + 1];
    }
  }
  return taps;
}
ASHLAR_DEVICE void store_taps(const Taps& taps, const Elements& to, int64_t at,
                              const Extent& extent) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) {
      pack.at[2 * i] = taps.old.at[half * kPack / 2 + i];
      pack.at[2 * i + 1] = taps.now.at[half * kPack / 2 + i];
    }
    store_pack(pack, to, at + half * kPack, half_extent(extent, half));
  }
}
ASHLAR_DEVICE Elements floats(const float* data) {
  return {(void*)data, ElementType::kF32};
}

// The thread's channels.
struct Channels {
  int64_t first;
  Extent extent;
};
ASHLAR_DEVICE Pack load_z(const ConvColumns& s, int64_t row, const Channels& c) {
  return load_pack(s.z, row * s.z_stride + c.first, c.extent);
}
// z one or two tokens before that of a row: 0 before the document.
ASHLAR_DEVICE Pack load_before(const ConvColumns& s, int64_t row, int steps, const Channels& c) {
  for (; steps > 0 && s.links[row] == kRowBefore; --steps) --row;
  if (steps == 0) return load_z(s, row, c);
  const int32_t link = s.links[row];
  if (link < 0 || (steps == 2 && link % 2 == 0)) return {};
  return load_pack(s.halo, (link / 2 * 2 + 2 - steps) * s.channels + c.first, c.extent);
}

ASHLAR_DEVICE Pack convolved(const Taps& w, const Pack& bias, const Pack& old, const Pack& now) {
  Pack u;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    u.at[i] = fma(w.old.at[i], old.at[i], fma(w.now.at[i], now.at[i], bias.at[i]));
  return u;
}

// z before the document is 0, so that u there is b0.
ASHLAR_KERNEL(kColumnThreads) conv_columns_forward_kernel(ConvColumnsForward x) {
  const ConvColumns& s = x.conv;
  const ColumnPart part = column_part(s.rows, s.channels);
  if (part.column >= s.channels) return;
  const Channels c{part.column, {s.channels - part.column, s.by_vectors}};
  const Taps w = load_taps(floats(s.w0), 2 * c.first, c.extent);
  const Pack bias = load_pack(s.b0, c.first, c.extent);
  Pack before = {}, u_before = {};
  for (int64_t row = part.first; row < part.end; ++row) {
    if (row == part.first || s.links[row] != kRowBefore) {
      before = load_before(s, row, 1, c);
      u_before = convolved(w, bias, load_before(s, row, 2, c), before);
    }
    const Pack now = load_z(s, row, c), u = convolved(w, bias, before, now);
    store_taps({u_before, u}, x.columns, 2 * (row * s.channels + c.first), c.extent);
    before = now, u_before = u;
  }
}

ASHLAR_DEVICE Taps load_columns(const ConvColumnsBackward& x, int64_t row, const Channels& c) {
  return load_taps(x.dcolumns, 2 * (row * x.conv.channels + c.first), c.extent);
}
// Whether a row is there and goes on the segment of the row before.
ASHLAR_DEVICE bool goes_on(const ConvColumns& s, int64_t row) {
  return row < s.rows && s.links[row] == kRowBefore;
}
ASHLAR_DEVICE void add_to(Pack& sum, const Pack& more) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.at[i] = add(sum.at[i], more.at[i]);
}
ASHLAR_DEVICE void add_products(Pack& sum, const Pack& a, const Pack& b) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.at[i] = fma(a.at[i], b.at[i], sum.at[i]);
}

// Sums over the thread's rows.
struct ConvSums {
  Taps dw = {};
  Pack db = {};
};

// Passes on what the old tap of a segment's first row gives to u of the token before: to b0 alone
// where a document starts, else to w0 and the halo too.  du is that of the first row itself.
ASHLAR_DEVICE void pass_to_halo(const ConvColumnsBackward& x, int64_t row, const Channels& c,
                                const Taps& w, const Pack& du, const Pack& before, ConvSums& sums) {
  const ConvColumns& s = x.conv;
  const Pack du_before = load_columns(x, row, c).old;
  add_to(sums.db, du_before);
  const int32_t link = s.links[row];
  if (link < 0) return;
  add_products(sums.dw.old, du_before, load_before(s, row, 2, c));
  add_products(sums.dw.now, du_before, before);
  Pack older = {}, newer = {};
  if (link % 2 == 1) add_products(older, w.old, du_before);
  add_products(newer, w.old, du);
  add_products(newer, w.now, du_before);
  const int64_t at = link / 2 * 2 * s.channels + c.first;
  store_pack(older, x.dhalo, at, c.extent);
  store_pack(newer, x.dhalo, at + s.channels, c.extent);
}

ASHLAR_KERNEL(kColumnThreads) conv_columns_backward_kernel(ConvColumnsBackward x) {
  const ConvColumns& s = x.conv;
  const ColumnPart part = column_part(s.rows, s.channels);
  if (part.column >= s.channels) return;
  const Channels c{part.column, {s.channels - part.column, s.by_vectors}};
  const Taps w = load_taps(floats(s.w0), 2 * c.first, c.extent);
  ConvSums sums;
  Pack before = {}, du = load_columns(x, part.first, c).now;
  Taps next = {};  // columns of the row behind
  if (part.first + 1 < s.rows) next = load_columns(x, part.first + 1, c);
  if (goes_on(s, part.first + 1)) add_to(du, next.old);
  for (int64_t row = part.first; row < part.end; ++row) {
    const bool first_of_segment = s.links[row] != kRowBefore;
    if (row == part.first || first_of_segment) before = load_before(s, row, 1, c);
    Pack du_next = next.now;
    next = {};
    if (row + 2 < s.rows) next = load_columns(x, row + 2, c);
    if (goes_on(s, row + 2)) add_to(du_next, next.old);
    const Pack z = load_z(s, row, c);
    Pack dz = load_pack(x.dz, row * x.dz_stride + c.first, c.extent);
    if (goes_on(s, row + 1)) add_products(dz, w.old, du_next);
    add_products(dz, w.now, du);
    store_pack(dz, x.dz, row * x.dz_stride + c.first, c.extent);
    add_to(sums.db, du);
    add_products(sums.dw.old, du, before);
    add_products(sums.dw.now, du, z);
    if (first_of_segment) pass_to_halo(x, row, c, w, du, before, sums);
    before = z, du = du_next;
  }
  store_taps(sums.dw, floats(x.dw0_partials), 2 * (part.partial * s.channels + c.first), c.extent);
  store_pack(sums.db, x.db0_partials, part.partial * s.channels + c.first, c.extent);
}

}  // namespace

std::string launch(const ConvColumnsForward& x) {
  return run(conv_columns_forward_kernel,
             {blocks_for_columns(x.conv.rows, x.conv.channels), kColumnThreads, 0}, x);
}
std::string launch(const ConvColumnsBackward& x) {
  return run(conv_columns_backward_kernel,
             {blocks_for_columns(x.conv.rows, x.conv.channels), kColumnThreads, 0}, x);
}

}  // namespace ashlar::device
