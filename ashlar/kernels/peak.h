// The rate of multiply-adds that this machine's registers sustain, the peak by which MFU is
// defined.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// Flop per second over all threads of the context, in independent chains on registers only, with
// the instructions that products of `compute` use on isa().  Takes a few milliseconds.
double measure_peak_flops(const Context&, DType compute);

// The flop that the threads of the context do in such chains within the given seconds.
int64_t flop_within(const Context&, DType compute, double seconds);

// Whether the device multiplies bf16 faster than fp32.  AMX tiles do; AVX-512 dot products run at
// twice the rate of fp32 multiply-adds on some cores, at half the rate on others.  They are timed
// once per process (some milliseconds), alternately, so that a load affects both.
bool bf16_is_faster(const Context& = {});

}  // namespace ashlar::kernels
