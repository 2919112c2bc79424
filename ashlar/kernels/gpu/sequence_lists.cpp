#include "ashlar/kernels/gpu/sequence_lists.h"

#include <vector>

#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

Tensor upload_positions(const Context& ctx, const Sequence& sequence, int64_t rotary_dim) {
  if (rotary_dim == 0) return {};
  const Tensor position_T = ctx.workspace->take(DType::kI32, {sequence.num_tokens()});
  gpu::upload_i32(ctx, sequence.position_T(), position_T);
  return position_T;
}

Tensor upload_links(const Context& ctx, const Sequence& sequence) {
  const Tensor link_T = ctx.workspace->take(DType::kI32, {sequence.num_tokens()});
  if (ctx.meta()) return link_T;
  std::vector<int32_t> links(size_t(sequence.num_tokens()), device::kRowBefore);
  for (size_t i = 0; i < sequence.segments().size(); ++i) {
    const Segment& segment = sequence.segments()[i];
    const int32_t halo = sequence.halo_of_segment()[i];
    links[size_t(segment.row)] = halo < 0               ? device::kNothingBefore
                                 : segment.position > 1 ? 2 * halo + 1
                                                        : 2 * halo;
  }
  gpu::upload_i32(ctx, links, link_T);
  return link_T;
}

}  // namespace ashlar::kernels::gpu
