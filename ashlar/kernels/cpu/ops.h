// The functions of the CPU.
#pragma once

#include "ashlar/kernels/ops.h"

namespace ashlar::kernels::cpu {

ASHLAR_DECLARE_OPS

}  // namespace ashlar::kernels::cpu
