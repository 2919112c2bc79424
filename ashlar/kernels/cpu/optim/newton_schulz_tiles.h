// Newton-Schulz in bf16 on tiles (AMX); see newton_schulz.h.
#pragma once

#include "ashlar/kernels/cpu/optim/newton_schulz_stacks.h"

namespace ashlar::kernels::cpu::newton_schulz {

void orthogonalize_tiles(const Context& ctx, const Stacks& stacks, int steps);

}  // namespace ashlar::kernels::cpu::newton_schulz
