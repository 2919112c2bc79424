// update.h: passes over whole tensors.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_KERNEL(kEachThreads) adamw_kernel(AdamWUpdate x) {
  const float new1 = mul(x.one_minus_beta1, x.grad_scale);
  for_each_of_block((x.n + kPack - 1) / kPack, [&](int64_t number) {
    const int64_t at = number * kPack;
    const Extent extent{x.n - at, x.by_vectors && at + kPack <= x.n};
    const Pack g = load_pack(x.g, at, extent);
    Pack w = load_pack(x.w, at, extent), m = load_pack(x.m, at, extent),
         v = load_pack(x.v, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float gradient = mul(g.at[i], x.grad_scale);
      m.at[i] = fma(x.beta1, m.at[i], mul(g.at[i], new1));
      v.at[i] = fma(x.beta2, v.at[i], mul(gradient, mul(gradient, x.one_minus_beta2)));
      const float root = fma(sqrt(v.at[i]), x.inverse_root2, x.eps);
      w.at[i] = fma(x.keep, w.at[i], -div(mul(x.rate, m.at[i]), root));
    }
    store_pack(m, x.m, at, extent);
    store_pack(v, x.v, at, extent);
    store_pack(w, x.w, at, extent);
    if (x.operand.data) store_pack(w, x.operand, at, extent);
  });
}

ASHLAR_KERNEL(kEachThreads) muon_momentum_kernel(MuonMomentumUpdate x) {
  for_each_of_block((x.n + kPack - 1) / kPack, [&](int64_t number) {
    const int64_t at = number * kPack;
    const Extent extent{x.n - at, x.by_vectors && at + kPack <= x.n};
    const Pack g = load_pack(x.g, at, extent);
    Pack m = load_pack(x.m, at, extent), input;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float gradient = mul(g.at[i], x.grad_scale);
      m.at[i] = fma(x.mu, m.at[i], gradient);
      input.at[i] = x.nesterov ? fma(x.mu, m.at[i], gradient) : m.at[i];
    }
    store_pack(m, x.m, at, extent);
    store_pack(input, x.x, at, extent);
  });
}

ASHLAR_KERNEL(kEachThreads) muon_apply_kernel(MuonApplyUpdate x) {
  for_each_of_block((x.n + kPack - 1) / kPack, [&](int64_t number) {
    const int64_t at = number * kPack;
    const Extent extent{x.n - at, x.by_vectors && at + kPack <= x.n};
    const Pack change = load_pack(x.x, at, extent);
    Pack w = load_pack(x.w, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) w.at[i] = fma(x.keep, w.at[i], mul(x.factor, change.at[i]));
    store_pack(w, x.w, at, extent);
    if (x.operand.data) store_pack(w, x.operand, at, extent);
  });
}

constexpr int kSquaresThreads = 256;
constexpr int kSquaresTurns = int(kSquaresOfPartial) / (kSquaresThreads * kPack);

ASHLAR_KERNEL(kSquaresThreads) sum_of_squares_kernel(SumOfSquares x) {
  float sum = 0;
#pragma unroll
  for (int turn = 0; turn < kSquaresTurns; ++turn) {
    const int64_t at =
        block_index() * kSquaresOfPartial + (turn * kSquaresThreads + thread_index()) * kPack;
    const Pack pack = load_pack(x.x, at, {x.n - at, x.by_vectors && at + kPack <= x.n});
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum = fma(pack.at[i], pack.at[i], sum);
  }
  sum = block_sum(sum, (float*)shared_memory());
  if (thread_index() == 0) x.partials[block_index()] = double(sum);
}

// One block: every thread sums its share of the partials in order, and the first one the shares.
ASHLAR_KERNEL(kSquaresThreads) sum_squares_of_blocks_kernel(SumOfSquares x) {
  auto* shares = (double*)shared_memory();
  const int64_t count = (x.n + kSquaresOfPartial - 1) / kSquaresOfPartial;
  const int64_t share = (count + kSquaresThreads - 1) / kSquaresThreads;
  const int64_t first = thread_index() * share;
  const int64_t end = first + share < count ? first + share : count;
  double sum = 0;
  for (int64_t i = first; i < end; ++i) sum = add(sum, x.partials[i]);
  shares[thread_index()] = sum;
  sync_block();
  if (thread_index() != 0) return;
  double total = 0;
  for (int i = 0; i < kSquaresThreads; ++i) total = add(total, shares[i]);
  *x.sum = total;
}

ASHLAR_DEVICE bool is_finite(float x) {
  constexpr uint32_t kExponent = 0x7f800000u;
  return (float_to_bits(x) & kExponent) != kExponent;
}

// The least number that a thread of the block has; for the first thread.
ASHLAR_DEVICE int64_t block_min(int64_t x, int64_t* room) {
  room[thread_index()] = x;
  sync_block();
  if (thread_index() != 0) return x;
  for (int i = 1; i < block_size(); ++i)
    if (room[i] < x) x = room[i];
  return x;
}

ASHLAR_KERNEL(kSquaresThreads) first_non_finite_kernel(FirstNonFinite x) {
  int64_t first = x.n;
  for (int turn = kSquaresTurns - 1; turn >= 0; --turn) {
    const int64_t at =
        block_index() * kSquaresOfPartial + (turn * kSquaresThreads + thread_index()) * kPack;
    const Pack pack = load_pack(x.x, at, {x.n - at, x.by_vectors && at + kPack <= x.n});
#pragma unroll
    for (int i = kPack - 1; i >= 0; --i)
      if (!is_finite(pack.at[i])) first = at + i;
  }
  first = block_min(first, (int64_t*)shared_memory());
  if (thread_index() == 0) x.partials[block_index()] = first;
}

ASHLAR_KERNEL(kSquaresThreads) first_of_blocks_kernel(FirstNonFinite x) {
  const int64_t count = (x.n + kSquaresOfPartial - 1) / kSquaresOfPartial;
  int64_t first = x.n;
  for (int64_t i = thread_index(); i < count; i += kSquaresThreads)
    if (x.partials[i] < first) first = x.partials[i];
  first = block_min(first, (int64_t*)shared_memory());
  if (thread_index() == 0) *x.first = first;
}

}  // namespace

std::string launch(const AdamWUpdate& x) {
  const int64_t packs = (x.n + kPack - 1) / kPack;
  return run(adamw_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}

std::string launch(const SumOfSquares& x) {
  const int64_t blocks = (x.n + kSquaresOfPartial - 1) / kSquaresOfPartial;
  if (blocks > 0) {
    const std::string error =
        run(sum_of_squares_kernel,
            {blocks, kSquaresThreads, kSquaresThreads / kLanes * int(sizeof(float))}, x);
    if (!error.empty()) return error;
  }
  return run(sum_squares_of_blocks_kernel,
             {1, kSquaresThreads, kSquaresThreads * int(sizeof(double))}, x);
}

std::string launch(const MuonMomentumUpdate& x) {
  const int64_t packs = (x.n + kPack - 1) / kPack;
  return run(muon_momentum_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}

std::string launch(const MuonApplyUpdate& x) {
  const int64_t packs = (x.n + kPack - 1) / kPack;
  return run(muon_apply_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}

std::string launch(const FirstNonFinite& x) {
  const int64_t blocks = (x.n + kSquaresOfPartial - 1) / kSquaresOfPartial;
  constexpr int kRoom = kSquaresThreads * int(sizeof(int64_t));
  const std::string error = run(first_non_finite_kernel, {blocks, kSquaresThreads, kRoom}, x);
  if (!error.empty()) return error;
  return run(first_of_blocks_kernel, {1, kSquaresThreads, kRoom}, x);
}

}  // namespace ashlar::device
