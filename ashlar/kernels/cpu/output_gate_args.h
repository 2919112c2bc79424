// The rows of output_gate.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels::cpu {

// Rows of C channels; those of the gate lie `gate_stride` elements apart.
template <typename T>
struct OutputGateArgs {
  int64_t C, gate_stride;
  Cells<T> att, gate, y;
};
void output_gate_rows_fast(const OutputGateArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct OutputGateGradientArgs {
  int64_t C, gate_stride, dgate_stride;
  Cells<T> dy, att, gate, datt, dgate;
};
void output_gate_gradient_rows_fast(const OutputGateGradientArgs<float>& args, int64_t begin,
                                    int64_t end);

}  // namespace ashlar::kernels::cpu
