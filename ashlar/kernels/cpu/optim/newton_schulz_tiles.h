// Newton-Schulz in bf16 on tiles (AMX); see newton_schulz.h.
#pragma once

#include "ashlar/core/threads.h"
#include "ashlar/kernels/context.h"

namespace ashlar::kernels::cpu::newton_schulz {

// Each matrix of x_GMN in turn, on its own thread or on all of them.
void orthogonalize_tiles(const Context& ctx, const Tensor& x_GMN, int steps, bool side_by_side);

}  // namespace ashlar::kernels::cpu::newton_schulz
