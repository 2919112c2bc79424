#include "ashlar/kernels/peak.h"

#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {

double measure_peak_flops(const Context& ctx, DType compute) {
  return ctx.ops->measure_peak_flops(ctx, compute);
}

int64_t flop_within(const Context& ctx, DType compute, double seconds) {
  return ctx.ops->flop_within(ctx, compute, seconds);
}

bool bf16_is_faster(const Context& ctx) {
  return ctx.ops->bf16_is_faster(ctx);
}

}  // namespace ashlar::kernels
