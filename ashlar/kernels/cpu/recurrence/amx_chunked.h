// The recurrence in tiles (chunked.h) on AMX: products of bf16 in tiles, and between them passes
// over rows of 512 bits.
#pragma once

#include "ashlar/kernels/cpu/recurrence/args.h"

namespace ashlar::kernels::cpu::amx {

void recurrence_forward(const RecurrenceArgs& call, const Matrix& out, const Tensor& leaving);
void recurrence_backward(const RecurrenceArgs& call, const RecurrenceGradients& g);

}  // namespace ashlar::kernels::cpu::amx
