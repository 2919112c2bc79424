#include "ashlar/kernels/cpu/gemm/engine.h"

#include "ashlar/core/error.h"
#include "ashlar/kernels/isa.h"

namespace ashlar::kernels::cpu::gemm {

const Engine* engine_for(const Context& ctx, DType compute) {
  if (ctx.reference || compute == DType::kF64) return nullptr;
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  if (compute == DType::kF32) return &f32_engine(false);
#if defined(__x86_64__)
  if (isa() == Isa::kAmx) return &amx_engine();
  if (isa() == Isa::kAvx512Bf16) return &bf16_engine();
#endif
  return &f32_engine(true);
}

const Engine& packing_engine(const Context& ctx, DType element) {
  // Both engines over F32 elements, exact and rounding, read the same panels.
  Context fast = ctx;
  fast.reference = false;
  const Engine& engine = engine_of_panels(*engine_for(fast, element), element);
  ASHLAR_ASSERT(engine.panel_element == element);
  return engine;
}

const Engine& engine_of_panels(const Engine& engine, DType panel) {
  return panel == DType::kBF16 && engine.panel_element != panel ? f32_engine_of_halves() : engine;
}

}  // namespace ashlar::kernels::cpu::gemm
