// The rows of norm.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/norm.h"

namespace ashlar::kernels::cpu {

// Without a merge o to br are absent, and h is the input.  A merge without parameters has factors
// instead of ao to br, and v and rstd_r where its residual is r normed.  The merge alone has no w,
// y and rstd.
template <typename T>
struct NormArgs {
  int64_t H;
  double eps, weight_offset;
  MergeFactors factors = {};
  Cells<T> o = {}, r = {}, ao = {}, bo = {}, ar = {}, br = {}, v = {}, rstd_r = {};
  Cells<T> h, w, y, rstd;
};
void norm_rows_fast(const NormArgs<float>& args, int64_t begin, int64_t end);

// Without a merge o to br and d_o are absent, and dr is dh.  With one, h may be absent.  A merge
// without parameters has factors instead of ao to br, and with h no o and r.  The merge alone has
// no dy, dy_in, h, rstd and w.
template <typename T>
struct NormGradientArgs {
  int64_t H;
  double weight_offset;
  MergeFactors factors = {};
  Cells<T> dy, dh_in, dy_in;
  Cells<T> o = {}, r = {}, ao = {}, bo = {}, ar = {}, br = {};
  Cells<T> h, rstd, w;
  Cells<T> d_o = {};
  Cells<T> dr;
};
// partial: with w dw [H]; then with ao to br dao, dbo, dar, dbr [H] each.
void norm_gradient_rows_fast(const NormGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial);

// The value that a tensor holds once this one was stored in it.
template <typename T>
T as_stored(const Cells<T>& cells, T value) {
  return cells.dtype() == DType::kBF16 ? T(float(bf16(float(value)))) : value;
}

}  // namespace ashlar::kernels::cpu
