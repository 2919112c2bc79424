// linear.h: a weight as the products of a GPU read it.
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

// W in bf16, row by row, which the products of both passes read; products in fp32 read W itself.
OperandLayout operand_layout(const Context&, int64_t groups, int64_t n, int64_t k, DType compute,
                             bool) {
  return {compute, compute == DType::kBF16 ? groups * n * k : 0, 0};
}

void pack(const Context& ctx, const Operand& w) {
  ASHLAR_ASSERT(w.forward.dtype == DType::kBF16 && !w.backward);
  gpu::copy(ctx, Matrix::of(w.w), Matrix::of(w.forward.view(w.w.shape)));
}

}  // namespace ashlar::kernels::gpu
