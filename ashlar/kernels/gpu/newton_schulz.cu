// newton_schulz.h: the passes of Newton-Schulz that are no products.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

constexpr int kThreads = 256;
constexpr int kTurns = int(kSquaresOfPartial) / (kThreads * kPack);

ASHLAR_BOTH int64_t partials_of_matrix(int64_t size) {
  return (size + kSquaresOfPartial - 1) / kSquaresOfPartial;
}

ASHLAR_KERNEL(kThreads) matrix_squares_kernel(NewtonSchulzScale x) {
  const Place place = place_of(block_index(), x.count, partials_of_matrix(x.size));
  float sum = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int64_t at =
        place.column * kSquaresOfPartial + (turn * kThreads + thread_index()) * kPack;
    const Pack pack = load_pack(x.x, place.row * x.size + at, {x.size - at, x.by_vectors});
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum = fma(pack.at[i], pack.at[i], sum);
  }
  sum = block_sum(sum, (float*)shared_memory());
  if (thread_index() == 0) x.partials[block_index()] = double(sum);
}

// A block a matrix: every thread sums its share of the partials in order, and the first one the
// shares.
ASHLAR_KERNEL(kThreads) matrix_factors_kernel(NewtonSchulzScale x) {
  auto* shares = (double*)shared_memory();
  const int64_t count = partials_of_matrix(x.size), share = (count + kThreads - 1) / kThreads;
  const int64_t first = thread_index() * share;
  const int64_t end = first + share < count ? first + share : count;
  double sum = 0;
  for (int64_t i = first; i < end; ++i) sum = add(sum, x.partials[block_index() * count + i]);
  shares[thread_index()] = sum;
  sync_block();
  if (thread_index() != 0) return;
  double total = 0;
  for (int i = 0; i < kThreads; ++i) total = add(total, shares[i]);
  x.factors[block_index()] = div(1.0f, add(sqrt(float(total)), x.tiny));
}

ASHLAR_KERNEL(kEachThreads) matrix_scale_kernel(NewtonSchulzScale x) {
  for_each_of_block(x.count * packs_of(x.size), [&](int64_t i) {
    const PackPlace p = pack_place(i, x.count, x.size, x.by_vectors);
    const int64_t at = p.row * x.size + p.column;
    Pack pack = load_pack(x.x, at, p.extent);
    const float factor = x.factors[p.row];
#pragma unroll
    for (int j = 0; j < kPack; ++j) pack.at[j] = mul(pack.at[j], factor);
    store_pack(pack, x.to, at, p.extent);
  });
}

ASHLAR_KERNEL(kEachThreads) add_identity_kernel(AddIdentity x) {
  const int64_t size = x.side * x.side;
  for_each_of_block(x.count * size, [&](int64_t i) {
    const bool on_diagonal = place_of(i, x.count, size).column % (x.side + 1) == 0;
    x.to[i] = on_diagonal ? add(x.from[i], x.factor) : x.from[i];
  });
}

}  // namespace

std::string launch(const NewtonSchulzScale& x) {
  const std::string in_squares = run(
      matrix_squares_kernel,
      {x.count * partials_of_matrix(x.size), kThreads, kThreads / kLanes * int(sizeof(float))}, x);
  if (!in_squares.empty()) return in_squares;
  const std::string in_factors =
      run(matrix_factors_kernel, {x.count, kThreads, kThreads * int(sizeof(double))}, x);
  if (!in_factors.empty()) return in_factors;
  return run(matrix_scale_kernel, {blocks_for_each(x.count * packs_of(x.size)), kEachThreads, 0},
             x);
}

std::string launch(const AddIdentity& x) {
  return run(add_identity_kernel, {blocks_for_each(x.count * x.side * x.side), kEachThreads, 0}, x);
}

}  // namespace ashlar::device
