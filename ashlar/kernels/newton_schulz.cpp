#include "ashlar/kernels/newton_schulz.h"

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

int64_t direct_flop(int64_t m, int64_t n, int steps) {
  return steps * (3 * m * m * n + m * m * m);
}
int64_t gram_flop(int64_t m, int64_t n, int steps) {
  return 3 * m * m * n + (4 * steps - 3) * m * m * m;
}

}  // namespace

bool newton_schulz_uses_gram(const Context& ctx, DType compute, int64_t rows, int64_t cols,
                             int steps) {
  const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
  return compute == DType::kF32 && !ctx.reference && steps > 0 &&
         gram_flop(m, n, steps) < direct_flop(m, n, steps);
}

int64_t newton_schulz_flop(const Context& ctx, DType compute, int64_t rows, int64_t cols,
                           int steps) {
  const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
  return newton_schulz_uses_gram(ctx, compute, rows, cols, steps) ? gram_flop(m, n, steps)
                                                                  : direct_flop(m, n, steps);
}

void orthogonalize(const Context& ctx, DType compute, std::span<const Tensor> stacks_GMN,
                   int steps) {
  ASHLAR_ASSERT(!stacks_GMN.empty() && steps >= 0);
  const Shape& shape = stacks_GMN[0].shape;
  int64_t G = 0, bytes = 0;
  for (const Tensor& x_GMN : stacks_GMN) {
    ASHLAR_ASSERT(x_GMN.shape.ndim() == 3 && x_GMN.shape[1] == shape[1] &&
                  x_GMN.shape[2] == shape[2]);
    ASHLAR_ASSERT(x_GMN.dtype == (compute == DType::kF64 ? DType::kF64 : DType::kF32));
    G += x_GMN.shape[0];
    bytes += 2 * x_GMN.bytes();
  }
  const int64_t flop = newton_schulz_flop(ctx, compute, shape[1], shape[2], steps);
  const TraceDims dims{int32_t(G), int32_t(shape[1]), int32_t(shape[2]), steps};
  const auto call = ctx.record("orthogonalize", compute, {G * flop, bytes}, dims);
  ctx.ops->orthogonalize(ctx, compute, stacks_GMN, steps);
}

}  // namespace ashlar::kernels
