#include "ashlar/kernels/peak.h"

#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels {

double measure_peak_flops(const Context& ctx, DType compute) {
  return cpu::measure_peak_flops(ctx, compute);
}

int64_t flop_within(const Context& ctx, DType compute, double seconds) {
  return cpu::flop_within(ctx, compute, seconds);
}

bool bf16_is_faster() {
  return cpu::bf16_is_faster();
}

}  // namespace ashlar::kernels
