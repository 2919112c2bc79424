// Lists of a Sequence, which are in the memory of the host: each call uploads those that it reads.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels::gpu {

// I32 [num_tokens] from the workspace; on meta it is only taken.
// Positions for RoPE; absent if it turns no element.
Tensor upload_positions(const Context& ctx, const Sequence& sequence, int64_t rotary_dim);

}  // namespace ashlar::kernels::gpu
