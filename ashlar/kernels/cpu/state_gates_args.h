// The rows of state_gates.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/state_gates.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct GlaGateArgs {
  int64_t N, stride;
  Cells<T> x, bias, log_decay;
};
void gla_gate_rows_fast(const GlaGateArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct GlaGateGradientArgs {
  int64_t N, stride, dstride;
  Cells<T> x, bias, dlog_decay, dx;
};
// partial: dbias [N].
void gla_gate_gradient_rows_fast(const GlaGateGradientArgs<float>& args, int64_t begin, int64_t end,
                                 float* partial);

template <typename T>
struct DeltaGatesArgs {
  int64_t H, stride;
  Cells<T> ba, a_log, dt_bias, log_decay, beta;
};
void delta_gates_rows_fast(const DeltaGatesArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct DeltaGatesGradientArgs {
  int64_t H, stride, dstride;
  Cells<T> ba, a_log, dt_bias, dlog_decay, dbeta, dba;
};
// partial: da_log [H], ddt_bias [H].
void delta_gates_gradient_rows_fast(const DeltaGatesGradientArgs<float>& args, int64_t begin,
                                    int64_t end, float* partial);

}  // namespace ashlar::kernels::cpu
