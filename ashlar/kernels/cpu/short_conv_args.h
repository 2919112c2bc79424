// The rows of short_conv.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/conv_args.h"
#include "ashlar/kernels/short_conv.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct ShortConvArgs {
  const Sequence* sequence;
  int64_t C, taps, x_stride;
  Cells<T> x, halo, w, y;
};
void short_conv_rows_fast(const ShortConvArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct ShortConvGradientArgs {
  const Sequence* sequence;
  int64_t C, taps, x_stride, dx_stride;
  Cells<T> dy, x, halo, w, dx, dhalo;
};
// partial: dw [C, taps].
void short_conv_gradient_rows_fast(const ShortConvGradientArgs<float>& args, int64_t begin,
                                   int64_t end, float* partial);

}  // namespace ashlar::kernels::cpu
