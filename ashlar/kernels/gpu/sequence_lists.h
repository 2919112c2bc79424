// Lists of a Sequence, which are in the memory of the host: each call uploads those that it reads.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels::gpu {

// Each is I32 [num_tokens] from the workspace; on meta it is only taken.
// Positions for RoPE; absent if it turns no element.
Tensor upload_positions(const Context& ctx, const Sequence& sequence, int64_t rotary_dim);
// Where the token before each token lies: the links of launch.h.
Tensor upload_links(const Context& ctx, const Sequence& sequence);

}  // namespace ashlar::kernels::gpu
