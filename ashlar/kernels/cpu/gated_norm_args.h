// The rows of gated_norm.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include <cmath>

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/gated_norm.h"

namespace ashlar::kernels::cpu {

// The data of all four functions.  squares is filled by gated_norm_squares and read by the others;
// likewise dots.  Without a gate z and dz are absent.
template <typename T>
struct GatedNormArgs {
  GatedNormShape s;
  int64_t z_stride = 0, dz_stride = 0;
  Cells<T> x, squares, w = {}, z = {}, y = {};
  Cells<T> dy = {}, dots = {}, dx = {}, dz = {};
};
void gated_norm_square_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end);
void gated_norm_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end);
void gated_norm_dot_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end);
// partial: dw, [D] or [G D].
void gated_norm_gradient_rows_fast(const GatedNormArgs<float>& args, int64_t begin, int64_t end,
                                   float* partial);

// Where group g of token t lies.
struct NormGroup {
  int64_t in_x, in_z, in_dz;  // its first element there
  int64_t in_w;
  int64_t in_sums;
};
template <typename T>
NormGroup norm_group(const GatedNormArgs<T>& x, int64_t t, int64_t g) {
  const int64_t column = g * x.s.D;
  return {t * x.s.G * x.s.D + column, t * x.z_stride + column, t * x.dz_stride + column,
          x.s.shared_weight ? 0 : column, t * x.s.G + g};
}

template <typename T>
T rstd_of(const GatedNormArgs<T>& x, const NormGroup& p) {
  return T(1) / std::sqrt(x.squares[p.in_sums] / T(x.s.mean_over) + T(x.s.eps));
}

}  // namespace ashlar::kernels::cpu
