// The rate of multiply-adds that this machine's registers sustain: the peak that MFU is a share of.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// Flop per second over all threads of the context, in independent chains on registers only, with
// the instructions that products of `compute` use on isa().  Takes a few milliseconds.
double measure_peak_flops(const Context&, DType compute);

// The flop that the threads of the context do in such chains within so many seconds.
int64_t flop_within(const Context&, DType compute, double seconds);

// Whether isa() multiplies bf16 faster than fp32: AMX tiles do; of the dot products of AVX-512 some
// cores do twice as many as fp32 multiply-adds in a second, others half as many.  Those are timed
// once a process (some milliseconds), in turns, so that a load hits both.
bool bf16_is_faster();

}  // namespace ashlar::kernels
