// bias.h: a vector added to rows, and its gradient.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_KERNEL(kEachThreads) bias_forward_kernel(BiasForward x) {
  for_each_of_block(x.rows * packs_of(x.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, x.rows, x.width, x.by_vectors);
    const int64_t at = p.row * x.stride + p.column;
    const Pack b = load_pack(x.b, p.column, p.extent);
    Pack y = load_pack(x.y, at, p.extent);
#pragma unroll
    for (int j = 0; j < kPack; ++j) y.at[j] = add(y.at[j], b.at[j]);
    store_pack(y, x.y, at, p.extent);
  });
}

ASHLAR_KERNEL(kColumnThreads) bias_backward_kernel(BiasBackward x) {
  const ColumnPart part = column_part(x.rows, x.width);
  if (part.column >= x.width) return;
  const Extent extent{x.width - part.column, x.by_vectors};
  Pack db = {};
  for (int64_t row = part.first; row < part.end; ++row) {
    const Pack dy = load_pack(x.dy, row * x.stride + part.column, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) db.at[i] = add(db.at[i], dy.at[i]);
  }
  store_pack(db, x.partials, part.partial * x.width + part.column, extent);
}

}  // namespace

std::string launch(const BiasForward& x) {
  return run(bias_forward_kernel, {blocks_for_each(x.rows * packs_of(x.width)), kEachThreads, 0},
             x);
}
std::string launch(const BiasBackward& x) {
  return run(bias_backward_kernel, {blocks_for_columns(x.rows, x.width), kColumnThreads, 0}, x);
}

}  // namespace ashlar::device
