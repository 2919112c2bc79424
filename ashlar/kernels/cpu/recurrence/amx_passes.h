// The passes over rows of a tile between its products on AMX: scaling, masking and rounding to bf16
// in one go, in the forms that the products read (amx_products.h), and the solve of the delta rule.
//
// Rows in bf16 stand `cols` elements apart, pairs of tokens kPairs, where `cols` and `rows` are
// multiples of 32; a pass fills what is beyond a matrix with zeros.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_products.h"
#include "ashlar/kernels/cpu/recurrence/rows.h"

namespace ashlar::kernels::cpu::amx {

// Brings rows of x near that are read soon.
void prefetch(const Matrix& x);

// to[i][c] = x[i][c] factor factors[i]; factors may be null: 1.
void to_rows(const Matrix& x, float factor, const float* factors, int64_t rows, int64_t cols,
             bf16* to);
// to[i][c] = x[i][c] by[i][c], rows of `by` `cols` apart.
void to_rows_by(const Matrix& x, const float* by, int64_t rows, int64_t cols, bf16* to);
// to[i][c] = by[i][c] to[i][c], and += x[i][c] by[i][c].
void scale_by(const float* by, int64_t rows, int64_t cols, float* to);
void add_by(const float* x, const float* by, int64_t rows, int64_t cols, float* to);

// Panels of the same matrix; they begin at `to`, in panels of `depth` >= rows.
void to_panels(const bf16* x, int64_t rows, int64_t cols, int64_t depth, bf16* to);
// Panels of the transpose [cols, rows], from rows `stride` apart.
void to_transposed_panels(const bf16* x, int64_t stride, int64_t rows, int64_t cols, bf16* to);
// Rows of the transpose [cols, depth], from panels; they stand `stride` apart.
void to_transposed_rows(const bf16* panels, int64_t depth, int64_t cols, bf16* to, int64_t stride);

// The state's rows times `whole`, and as bf16 before that.
void pass_state(float* M, const float* whole, int64_t rows, int64_t cols, bf16* to);

// Decays in rows of `cols`, 1 or a multiple of 32: in[i] is the product of a[0..i], out[i] of
// a[i + 1..n - 1].  Products below 1e-30 are 0.
void running_products(const float* a, int64_t n, int64_t cols, float* in, float* out);
// later[i] is the product of a[first + 1..i], for i from `first` to the returned end, before which
// none falls below kFaintest; earlier[j] is 1 / later[j], or the product of a[j + 1..first] for j
// before `first`.
inline constexpr float kFaintest = 1e-26f;
int64_t segment_products(const float* a, int64_t first, int64_t n, int64_t cols, float* later,
                         float* earlier);

// Decays between two tokens j <= i: the product of a over the tokens behind j up to i.
struct PairDecays {
  const float* a;  // [kPairs], 1 where nothing decays
  int64_t n, rows;
};
// to[i][j] = p[i][j] decay(i, j) for j <= i < n, else 0.
void keep_pairs(const PairDecays& d, const float* p, bf16* to);
// The same for j < i, and times -factors[i].
void keep_earlier(const PairDecays& d, const float* p, bf16* to);
void keep_earlier(const PairDecays& d, const float* p, const float* factors, float* to);

// l has zeros on and above its diagonal.  Its blocks of 32 on the diagonal become (1 - block)^-1 -
// 1, and all of it bf16.
void invert_blocks(float* l, int64_t rows, bf16* to);

// read[i] = factors[i] (v[i] - decays[i] read[i]), or factors[i] v[i]; rows from n on become 0.
struct Written {
  const bf16* v;
  const float *factors, *decays;
  int64_t n, rows, cols;
};
void write(const Written& w, bool has_read, float* read);

// dots[i] += sign x[i] . y[i], rows `cols` apart.
void add_dots(const bf16* x, const float* y, int64_t rows, int64_t cols, float sign, float* dots);
float dot(const float* x, const float* y, int64_t n);

}  // namespace ashlar::kernels::cpu::amx
