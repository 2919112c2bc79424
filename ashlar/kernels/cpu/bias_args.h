// The rows of bias.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels::cpu {

// Rows of N columns, `stride` elements apart.
template <typename T>
struct BiasArgs {
  int64_t N, stride;
  Cells<T> b, y;
};
void bias_rows_fast(const BiasArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct BiasGradientArgs {
  int64_t N, stride;
  Cells<T> dy;
};
// partial: db [N].
void bias_gradient_rows_fast(const BiasGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial);

}  // namespace ashlar::kernels::cpu
