// The rows of moe.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct CombineArgs {
  int64_t H, k;
  bool identity;
  const int32_t* row_of_token;
  Cells<T> y_rows, p, m, e;
};
void combine_rows_fast(const CombineArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct CombineGradientArgs {
  int64_t H, k;
  bool identity;
  const int32_t* row_of_token;
  Cells<T> de, y_rows, p, m, dy_rows, dp;
};
void combine_gradient_rows_fast(const CombineGradientArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct ScatterArgs {
  int64_t H, k;
  bool identity;
  const int32_t* row_of_token;
  Cells<T> shared, dx_rows, p, de, dm;  // shared may be absent
};
void scatter_rows_fast(const ScatterArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct SharedArgs {
  int64_t H;
  Cells<T> z, s, e;  // z may be absent
};
void shared_rows_fast(const SharedArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct SharedGradientArgs {
  int64_t H;
  Cells<T> de, z, s, ds, dz;
};
void shared_gradient_rows_fast(const SharedGradientArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct SwigluArgs {
  int64_t F;
  Cells<T> gate_up, act;
};
void swiglu_rows_fast(const SwigluArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct SwigluGradientArgs {
  int64_t F;
  Cells<T> dact, gate_up, dgate_up;
};
void swiglu_gradient_rows_fast(const SwigluGradientArgs<float>& args, int64_t begin, int64_t end);

}  // namespace ashlar::kernels::cpu
