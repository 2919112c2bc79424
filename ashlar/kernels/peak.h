// The rate of multiply-adds that this machine's registers sustain: the peak that MFU is a share of.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// Flop per second over all threads of the context, in independent chains on registers only, with
// the instructions that products of `compute` use on isa().  Takes about 20 ms.
double measure_peak_flops(const Context&, DType compute);

}  // namespace ashlar::kernels
