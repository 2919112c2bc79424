// Elements converted on the vectors of isa(), with the bits of copy_convert (tensor/tensor.h).
#pragma once

#include <cstdint>

#include "ashlar/tensor/dtype.h"

namespace ashlar::kernels::cpu {

void round_fast(const float* from, bf16* to, int64_t count);
void widen_fast(const bf16* from, float* to, int64_t count);

}  // namespace ashlar::kernels::cpu
