// The passes over rows of a tile between its products on AMX: scaling, masking and rounding to bf16
// in one go, in the forms that the products read (amx_products.h), and the inverse of the delta
// rule.
//
// Rows in bf16 stand `cols` elements apart, pairs of tokens kPairs, where `cols` and `rows` are
// multiples of 32; a pass fills what is beyond a matrix with zeros.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_products.h"
#include "ashlar/kernels/cpu/recurrence/rows.h"

namespace ashlar::kernels::cpu::amx {

inline constexpr int64_t kLanes = 16;  // of a vector

// Brings rows of x near that are read soon.
void prefetch(const Matrix& x);

// to[i][c] = x[i][c] factor factors[i]; factors may be null: 1.
void to_rows(const Matrix& x, float factor, const float* factors, int64_t rows, int64_t cols,
             bf16* to);
// to[i][c] = x[i][c] by[i][c], rows of `by` `cols` apart.
void to_rows_by(const Matrix& x, const float* by, int64_t rows, int64_t cols, bf16* to);
// As to_rows, in panels of `depth` >= rows.
void to_panels(const Matrix& x, float factor, const float* factors, int64_t rows, int64_t cols,
               int64_t depth, bf16* to);
// Panels of the transpose [cols, rows], from rows.
void to_transposed_panels(const bf16* x, int64_t rows, int64_t cols, bf16* to);
// Rows of the transpose [cols, depth], kPairs apart, from panels.
void to_transposed_rows(const bf16* panels, int64_t depth, int64_t cols, bf16* to);

// to[i][c] += x[i][c] by[i][c], in rows of `cols`.
void add_by(const float* x, const float* by, int64_t rows, int64_t cols, float* to);
// to[i][c] = made[i] D[i][c] in bf16, then D[i][c] *= passed[i].
void pass_gradient(float* D, const float* made, const float* passed, int64_t rows, int64_t cols,
                   bf16* to);

// Products of decays below it count as 0.
inline constexpr float kSmallest = 1e-30f;
// in[i] is the product of a[0..i], out[i] that of a[i + 1..n - 1], in rows of `cols`: 1, or a
// multiple of 32.
void running_products(const float* a, int64_t n, int64_t cols, float* in, float* out);
// in[i] is the product of a[0..i], inverse[i] is 1 / in[i], for i below the returned number, before
// which no product falls below kFaintest.
inline constexpr float kFaintest = 1e-22f;
int64_t segment_products(const float* a, int64_t n, int64_t cols, float* in, float* inverse);
// to[i] is the product of a[i + 1..end] for i < end.
void products_back(const float* a, int64_t end, int64_t cols, float* to);

// Pairs of tokens, of which row i sees the tokens before n up to i.  Its rows are those of n padded
// with zeros.  between[i], unless null, multiplies pairs of token i and of later ones with earlier
// tokens.
struct Pairs {
  const float* between;
  int64_t n, rows;
};
// to[i][j] = p[i][j] for j <= i < n, or j < i (strict), else 0.
void keep_pairs(const Pairs& pairs, const float* p, bool strict, bf16* to);
void keep_pairs(const Pairs& pairs, const bf16* p, bf16* to);
// to[i][j] = -factors[i] p[i][j] for j < i < n, else 0.
void keep_earlier(const Pairs& pairs, const float* p, const float* factors, float* to);

// l has zeros on and above its diagonal.  Its blocks of 32 on the diagonal become (1 - block)^-1 -
// 1, and all of it bf16.
void invert_blocks(float* l, int64_t rows, bf16* to);

// to[i][c] = factors[i] x[i][c], factors may be null: 1; rows of x `stride` apart: past the caches
// where rows of `to` are whole lines.
void store_rows(const float* x, int64_t stride, const float* factors, const Matrix& to);

// products[i][c] += sign x[i][c] y[i][c], rows `cols` apart.
void add_products(const bf16* x, const float* y, int64_t rows, int64_t cols, float sign,
                  float* products);
float dot(const float* x, const float* y, int64_t n);
// to[i][c] = sum[c] + sum over j < i of before[j][c] + sum over j >= i of after[j][c], as
// RowOps::sum_around, with `cols` columns in rows of `stride`; uses up after.
void sum_around(int64_t n, int64_t cols, int64_t stride, const float* before, float* after,
                float* sum, float* to, int64_t to_stride);

}  // namespace ashlar::kernels::cpu::amx
