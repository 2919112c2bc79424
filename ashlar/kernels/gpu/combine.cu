// moe.h: results of experts and of a shared expert, added to tokens.  Without a sum over a row a
// thread has a pack of it; with one 32 lanes have the row.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/row_lanes.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_DEVICE void add_product(Pack& sum, float factor, const Pack& pack) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.at[i] = fma(factor, pack.at[i], sum.at[i]);
}
ASHLAR_DEVICE void add_pack(Pack& sum, const Pack& pack) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.at[i] = add(sum.at[i], pack.at[i]);
}
ASHLAR_DEVICE float plus_dot(float sum, const Pack& a, const Pack& b) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum = fma(a.at[i], b.at[i], sum);
  return sum;
}
ASHLAR_DEVICE void store_product(float factor, const Pack& pack, const Elements& to, int64_t at,
                                 const Extent& extent) {
  Pack product;
#pragma unroll
  for (int i = 0; i < kPack; ++i) product.at[i] = mul(factor, pack.at[i]);
  store_pack(product, to, at, extent);
}

ASHLAR_KERNEL(kEachThreads) combine_forward_kernel(CombineForward x) {
  const Choices& c = x.choices;
  for_each_of_block(c.tokens * packs_of(c.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, c.tokens, c.width, c.by_vectors);
    const int64_t at = p.row * c.width + p.column;
    Pack sum = {};
    for (int64_t choice = p.row * c.k; choice < (p.row + 1) * c.k; ++choice) {
      const int64_t row = c.row_of_token[choice];
      if (row >= 0)
        add_product(sum, c.weight[choice], load_pack(x.y_rows, row * c.width + p.column, p.extent));
      else if (c.identity)
        add_product(sum, c.weight[choice], load_pack(x.m, at, p.extent));
    }
    store_pack(sum, x.e, at, p.extent);
  });
}

// 32 lanes have a choice.
ASHLAR_KERNEL(kRowThreads) combine_backward_kernel(CombineBackward x) {
  const Choices& c = x.choices;
  const int64_t choice = row_of_lanes();
  if (choice >= c.tokens * c.k) return;
  const int64_t row = c.row_of_token[choice], token = choice / c.k;
  float dot = 0;
  if (row >= 0 || c.identity)
    for_packs_of_lane(c.width, c.by_vectors, [&](int64_t column, const Extent& extent) {
      const int64_t of_token = token * c.width + column, of_row = row * c.width + column;
      const Pack de = load_pack(x.de, of_token, extent);
      dot = plus_dot(
          dot, de,
          row >= 0 ? load_pack(x.y_rows, of_row, extent) : load_pack(x.m, of_token, extent));
      if (row >= 0) store_product(c.weight[choice], de, x.dy_rows, of_row, extent);
    });
  dot = lane_sum(dot);
  if (thread_index() % kLanes == 0) x.dweight[choice] = dot;
}

ASHLAR_KERNEL(kEachThreads) scatter_rows_kernel(ScatterRowsAdd x) {
  const Choices& c = x.choices;
  for_each_of_block(c.tokens * packs_of(c.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, c.tokens, c.width, c.by_vectors);
    const int64_t at = p.row * c.width + p.column;
    Pack sum = load_pack(x.dm, at, p.extent);
    if (x.shared.data) add_pack(sum, load_pack(x.shared, at, p.extent));
    for (int64_t choice = p.row * c.k; choice < (p.row + 1) * c.k; ++choice) {
      const int64_t row = c.row_of_token[choice];
      if (row >= 0)
        add_pack(sum, load_pack(x.dx_rows, row * c.width + p.column, p.extent));
      else if (c.identity)
        add_product(sum, c.weight[choice], load_pack(x.de, at, p.extent));
    }
    store_pack(sum, x.dm, at, p.extent);
  });
}

ASHLAR_KERNEL(kEachThreads) shared_add_forward_kernel(SharedAddForward x) {
  for_each_of_block(x.rows * packs_of(x.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, x.rows, x.width, x.by_vectors);
    const int64_t at = p.row * x.width + p.column;
    Pack e = load_pack(x.e, at, p.extent);
    add_product(e, x.z ? sigmoid(x.z[p.row]) : 1.0f, load_pack(x.s, at, p.extent));
    store_pack(e, x.e, at, p.extent);
  });
}

ASHLAR_KERNEL(kRowThreads) shared_add_backward_kernel(SharedAddBackward x) {
  const int64_t row = row_of_lanes();
  if (row >= x.rows) return;
  const float gate = sigmoid(x.z[row]);
  float dot = 0;
  for_packs_of_lane(x.width, x.by_vectors, [&](int64_t column, const Extent& extent) {
    const int64_t at = row * x.width + column;
    const Pack de = load_pack(x.de, at, extent);
    dot = plus_dot(dot, de, load_pack(x.s, at, extent));
    store_product(gate, de, x.ds, at, extent);
  });
  dot = lane_sum(dot);
  if (thread_index() % kLanes == 0) x.dz[row] = mul(mul(gate, add(1.0f, -gate)), dot);
}

}  // namespace

std::string launch(const CombineForward& x) {
  const int64_t packs = x.choices.tokens * packs_of(x.choices.width);
  return run(combine_forward_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}
std::string launch(const CombineBackward& x) {
  return run(combine_backward_kernel,
             {blocks_for_rows(x.choices.tokens * x.choices.k), kRowThreads, 0}, x);
}
std::string launch(const ScatterRowsAdd& x) {
  const int64_t packs = x.choices.tokens * packs_of(x.choices.width);
  return run(scatter_rows_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}
std::string launch(const SharedAddForward& x) {
  return run(shared_add_forward_kernel,
             {blocks_for_each(x.rows * packs_of(x.width)), kEachThreads, 0}, x);
}
std::string launch(const SharedAddBackward& x) {
  return run(shared_add_backward_kernel, {blocks_for_rows(x.rows), kRowThreads, 0}, x);
}

}  // namespace ashlar::device
