// peak.h: the peaks that the maker of a chip states.  Nothing is measured, so that a GPU's numbers
// are the same on every card of its kind.
#include <cmath>
#include <limits>

#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

double peak_of(const DeviceSpec& gpu, DType compute) {
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  const double flops = compute == DType::kBF16 ? gpu.bf16_flops : gpu.fp32_flops;
  return flops > 0 ? flops : std::numeric_limits<double>::quiet_NaN();
}

double measure_peak_flops(const Context& ctx, DType compute) {
  ASHLAR_ASSERT(ctx.spec);
  const double flops = peak_of(*ctx.spec, compute);
  ASHLAR_REQUIRE(flops > 0, kDevice,
                 "the peak of {} is unknown: describe the device in a file (docs/plan.md)",
                 ctx.spec->name);
  return flops;
}

int64_t flop_within(const Context& ctx, DType compute, double seconds) {
  return std::llround(seconds * gpu::measure_peak_flops(ctx, compute));
}

// Every chip that kernels are compiled for has matrix units that multiply bf16 several times as
// fast as fp32.
bool bf16_is_faster(const Context&) {
  return true;
}

}  // namespace ashlar::kernels::gpu
