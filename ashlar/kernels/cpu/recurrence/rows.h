// The loops over rows of a tile beside its products, for every instruction set, in float and
// double.  Pairs of tokens stand in rows of kTile, other rows `stride` apart.
#pragma once

#include "ashlar/kernels/matrix.h"
#include "ashlar/kernels/recurrence.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kPairs = Recurrence::kTile;  // elements between rows of pairs
inline constexpr int64_t kSubTile = 16;  // tokens whose channel gates multiply one by one

// Sixteen tokens at most with gates of channels: x and k in rows of their own matrices, a their
// gates [count, dk] in rows of a_stride.
template <typename Real>
struct DiagonalPairs {
  Matrix x, k;  // [count, dk]
  const Real* a;
  int64_t a_stride;
};

// One token of one head.  The state `from` [dk, cols] (null: 0) becomes `to`, both in rows of
// `stride`; they may be the same.
template <typename Real>
struct TokenStep {
  int64_t dk, cols, stride;
  const Real* from;
  Real* to;
  const Real *q, *k, *a;  // [dk]; a: decays
  const Real* v;          // [cols]
  Real beta;
  bool delta;
  Real* out;  // [cols]
};

template <typename Real>
struct RowOps {
  // to[i][c] = factor x[i][c]; factors[i] x[i][c]; by[i][c] x[i][c].  x may be `to` itself.
  void (*copy)(const Matrix& x, Real factor, Real* to, int64_t stride);
  void (*scale)(const Matrix& x, const Real* factors, Real* to, int64_t stride);
  void (*times)(const Matrix& x, const Real* by, int64_t by_stride, Real* to, int64_t stride);
  // As copy, past the caches where rows of `to` are whole lines: what is not read soon.
  void (*stream)(const Matrix& x, Real factor, Real* to, int64_t stride);
  // to[i][c] += x[i][c]; to[i][c] = x[i][c] - to[i][c].
  void (*add)(const Matrix& x, Real* to, int64_t stride);
  void (*subtract_from)(const Matrix& x, Real* to, int64_t stride);
  // y[i] = e^x[i], x <= 0.
  void (*exp)(const Real* x, int64_t n, Real* y);
  // e[i][j] = e^(sum of log_a[j + 1..i]) for j <= i; nothing else is written.
  void (*exp_pairs)(const Real* log_a, int64_t n, Real* e);
  // p[i][j] = p[i][j] (e ? e[i][j] : 1) for j <= i, or j < i (strict); else exactly 0.
  void (*mask)(const Real* e, int64_t n, bool strict, Real* p);

  // Row by row y_i -= sum over j < i of l[i][j] w_j and w_i = beta_i y_i.
  void (*solve)(const Real* l, const Real* beta, int64_t n, int64_t cols, int64_t stride, Real* y,
                Real* w);
  // From the last row to the first: r_i += sum over j > i of l[j][i] g_j and g_i = -beta_i r_i.
  void (*solve_back)(const Real* l, const Real* beta, int64_t n, int64_t cols, int64_t stride,
                     Real* r, Real* g);

  // dots[i] (+)= sign sum over c of x[i][c] y[i][c], in a fixed order of c.
  void (*add_dots)(const Matrix& x, const Real* y, int64_t stride, Real sign, Real* dots);
  // to[i][c] += sign x[i][c] y[i][c].
  void (*add_products)(const Matrix& x, const Real* y, int64_t stride, Real sign, Real* to);

  // p[i][j] = sum over c of x[i][c] k[j][c] prod of a[j+1..i][c] for j <= i < count.
  void (*diagonal_pairs)(const DiagonalPairs<Real>& d, Real* p);
  // dx += and dk += of the same, from dp[i][j], j <= i.
  void (*diagonal_gradient)(const DiagonalPairs<Real>& d, const Real* dp, int64_t stride, Real* dx,
                            Real* dk);

  // to[i][c] = sum[c] + sum over j < i of before[j][c] + sum over j >= i of after[j][c] for n
  // tokens and `cols` columns; uses up sum and after, both in rows of `stride` as `before` is.
  void (*sum_around)(int64_t n, int64_t cols, int64_t stride, const Real* before, Real* after,
                     Real* sum, Real* to, int64_t to_stride);

  void (*token)(const TokenStep<Real>& s);

  // to[i][c] = sum over b of a[i row_step + b col_step] m[b][c], a square of `n`, rows of m and
  // `to` `cols` apart.
  void (*apply)(const Real* a, int64_t row_step, int64_t col_step, int64_t n, int64_t cols,
                const Real* m, Real* to);
};

// The functions of the build that isa() permits.
template <typename Real>
const RowOps<Real>& row_ops();
template <>
const RowOps<float>& row_ops<float>();
template <>
const RowOps<double>& row_ops<double>();

}  // namespace ashlar::kernels::cpu
