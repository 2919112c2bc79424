// The sum of all ranks' contributions, in the order given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/tensor/dtype.h"

namespace ashlar::comm {

bool can_sum(DType dtype);  // fp64, fp32, bf16 and integers

// out[i] = sources[0][i] + sources[1][i] + ...; out may be one of the sources.
// Numerics  bf16 is summed in fp32 and rounded once; integers wrap.
void sum_in_order(DType dtype, std::span<const std::byte* const> sources, std::byte* out,
                  int64_t count);

}  // namespace ashlar::comm
