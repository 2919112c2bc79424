// embedding.h: rows of the table, and their gradients by id.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_KERNEL(kEachThreads) embedding_forward_kernel(EmbeddingForward x) {
  const int64_t packs = (x.width + kPack - 1) / kPack;
  for_each_of_block(x.rows * packs, [&](int64_t number) {
    const Place p = place_of(number, x.rows, packs);
    const int64_t column = p.column * kPack;
    const Extent extent{x.width - column, x.by_vectors};
    Pack row = load_pack(x.emb, x.ids[p.row] * x.width + column, extent);
    if (x.scale) {
      const Pack scale = load_pack(x.scale, column, extent);
      const Pack bias = load_pack(x.bias, column, extent);
#pragma unroll
      for (int i = 0; i < kPack; ++i) row.at[i] = mul(add(row.at[i], bias.at[i]), scale.at[i]);
    }
    store_pack(row, x.x, p.row * x.width + column, extent);
  });
}

// A row's place is the number of rows before it, which are counted by comparing it with all.  That
// is rows^2 comparisons, but of numbers that are in cache: cheaper than the passes of a radix sort
// up to some ten thousand rows, and little beside a step for more.  A block places kLanes rows, and
// each of its groups of lanes compares them with one of the shares of all rows.
constexpr int kSortShares = 8;

ASHLAR_KERNEL(kSortShares* kLanes) sort_ids_kernel(SortIds x) {
  auto* counts = (int32_t*)shared_memory();  // [kSortShares, kLanes]
  const int lane = thread_index() % kLanes, share = thread_index() / kLanes;
  const int64_t row = int64_t(block_index()) * kLanes + lane;
  const int32_t id = row < x.rows ? x.ids[row] : 0;
  int32_t count = 0;
  for (int64_t other = share; other < x.rows; other += kSortShares)
    count += x.ids[other] < id + int32_t(other < row);
  counts[thread_index()] = count;
  sync_block();
  if (share > 0 || row >= x.rows) return;
  int32_t place = 0;
  for (int i = 0; i < kSortShares; ++i) place += counts[i * kLanes + lane];
  x.sorted_ids[place] = id;
  x.sorted_rows[place] = int32_t(row);
}

// A block has some columns of the rows of one id: of those from its place on in the sorted list, if
// it is the first of its id.
constexpr int kTableThreads = 128, kTableColumns = kTableThreads * kPack;

ASHLAR_KERNEL(kTableThreads) embedding_table_gradient_kernel(EmbeddingTableGradient x) {
  const int64_t parts = (x.width + kTableColumns - 1) / kTableColumns;
  const int64_t begin = block_index() / parts;
  const int64_t column = (block_index() - begin * parts) * kTableColumns + thread_index() * kPack;
  const int32_t id = x.sorted_ids[begin];
  if (id == x.fixed_id || (begin > 0 && x.sorted_ids[begin - 1] == id) || column >= x.width) return;
  const Extent extent{x.width - column, x.by_vectors};
  Pack scale = {}, sum = load_pack(x.demb, id * x.width + column, extent);
  if (x.scale) scale = load_pack(x.scale, column, extent);
  for (int64_t place = begin; place < x.rows && x.sorted_ids[place] == id; ++place) {
    const Pack dx = load_pack(x.dx, x.sorted_rows[place] * x.width + column, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      sum.at[i] = add(sum.at[i], x.scale ? mul(dx.at[i], scale.at[i]) : dx.at[i]);
  }
  store_pack(sum, x.demb, id * x.width + column, extent);
}

ASHLAR_KERNEL(kColumnThreads) embedding_affine_gradient_kernel(EmbeddingAffineGradient x) {
  const ColumnPart part = column_part(x.rows, x.width);
  if (part.column >= x.width) return;
  const Extent extent{x.width - part.column, x.by_vectors};
  const Pack scale = load_pack(x.scale, part.column, extent);
  const Pack bias = load_pack(x.bias, part.column, extent);
  Pack dscale = {}, dbias = {};
  for (int64_t row = part.first; row < part.end; ++row) {
    const Pack dx = load_pack(x.dx, row * x.width + part.column, extent);
    const Pack emb = load_pack(x.emb, x.ids[row] * x.width + part.column, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      dscale.at[i] = fma(dx.at[i], add(emb.at[i], bias.at[i]), dscale.at[i]);
      dbias.at[i] = add(dbias.at[i], dx.at[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) dbias.at[i] = mul(dbias.at[i], scale.at[i]);
  const int64_t partials = (x.rows + kPartialRows - 1) / kPartialRows;
  store_pack(dscale, x.partials, part.partial * x.width + part.column, extent);
  store_pack(dbias, x.partials, (partials + part.partial) * x.width + part.column, extent);
}

}  // namespace

std::string launch(const EmbeddingForward& x) {
  const int64_t packs = x.rows * ((x.width + kPack - 1) / kPack);
  return run(embedding_forward_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}

std::string launch(const SortIds& x) {
  constexpr int kThreads = kSortShares * kLanes;
  return run(sort_ids_kernel,
             {(x.rows + kLanes - 1) / kLanes, kThreads, kThreads * int(sizeof(int32_t))}, x);
}

std::string launch(const EmbeddingTableGradient& x) {
  const int64_t parts = (x.width + kTableColumns - 1) / kTableColumns;
  return run(embedding_table_gradient_kernel, {x.rows * parts, kTableThreads, 0}, x);
}

std::string launch(const EmbeddingAffineGradient& x) {
  return run(embedding_affine_gradient_kernel,
             {blocks_for_columns(x.rows, x.width), kColumnThreads, 0}, x);
}

}  // namespace ashlar::device
