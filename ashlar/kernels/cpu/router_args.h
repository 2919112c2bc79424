// The rows of router.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct MixArgs {
  int64_t R;
  double eps;
  Cells<T> r, b, r_prev, gamma, w, n, rstd;  // r_prev and gamma absent in block 0
};
void mix_rows_fast(const MixArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct MixGradientArgs {
  int64_t R;
  Cells<T> dn, dr_next, r, r_prev, gamma, w, rstd, dr, dr_low, dr_prev;
};
// partial: db [R], dw [R], and with gamma dgamma [R].
void mix_gradient_rows_fast(const MixGradientArgs<float>& args, int64_t begin, int64_t end,
                            float* partial);

template <typename T>
struct GeluArgs {
  int64_t R;
  Cells<T> z, b, s;
};
void gelu_rows_fast(const GeluArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct GeluGradientArgs {
  int64_t R;
  Cells<T> ds, z, b, dz;
};
void gelu_gradient_rows_fast(const GeluGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* db);

template <typename T>
struct SelectArgs {
  int64_t X;
  Cells<T> logits, bias, p, weight;
  int32_t* expert;
};
void select_rows_fast(const SelectArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct SelectGradientArgs {
  int64_t X;
  Cells<T> dweight, p, dlogits;
  const int32_t* expert;
};
void select_gradient_rows_fast(const SelectGradientArgs<float>& args, int64_t begin, int64_t end);

}  // namespace ashlar::kernels::cpu
