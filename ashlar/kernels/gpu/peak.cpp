// peak.h: the peaks that the maker of a chip states.  Nothing is measured, so that a GPU's numbers
// are the same on every card of its kind.
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

const DeviceSpec& chip_of_context(const Context& ctx) {
  ASHLAR_ASSERT(ctx.spec);
  return *ctx.spec;
}

}  // namespace

double measure_peak_flops(const Context& ctx, DType compute) {
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  const DeviceSpec& chip = chip_of_context(ctx);
  const double flops = compute == DType::kBF16 ? chip.bf16_flops : chip.fp32_flops;
  ASHLAR_REQUIRE(flops > 0, kDevice,
                 "the peak of {} is unknown: describe the device in a file (docs/plan.md)",
                 chip.name);
  return flops;
}

int64_t flop_within(const Context& ctx, DType compute, double seconds) {
  return std::llround(seconds * gpu::measure_peak_flops(ctx, compute));
}

// Matrix units multiply bf16 on every chip that kernels are compiled for, at several times the rate
// of fp32.
bool bf16_is_faster(const Context&) {
  return true;
}

}  // namespace ashlar::kernels::gpu
