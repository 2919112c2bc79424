#include "ashlar/kernels/gpu/sequence_lists.h"

#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

Tensor upload_positions(const Context& ctx, const Sequence& sequence, int64_t rotary_dim) {
  if (rotary_dim == 0) return {};
  const Tensor position_T = ctx.workspace->take(DType::kI32, {sequence.num_tokens()});
  gpu::upload_i32(ctx, sequence.position_T(), position_T);
  return position_T;
}

}  // namespace ashlar::kernels::gpu
