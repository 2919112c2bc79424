// Passes over a block of 32 x 32 sums that has just left the tiles: what a tile of the recurrence
// does with a product, while it is in the first-level cache.
//
// Blocks are fp32 in rows of kBlock.  A destination begins at the block's own place unless a row
// and a column are given.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_passes.h"

namespace ashlar::kernels::cpu::amx {

using Block = float[kBlock * kBlock];

// product(row, col, block) and then use(row, col, block) for the blocks of a matrix, down its
// columns.
template <typename Product, typename Use>
void for_blocks(int64_t rows, int64_t cols, Blocks which, Product product, Use use) {
  alignas(64) Block block;
  for (int64_t c = 0; c < cols; c += kBlock)
    for (int64_t i = which == Blocks::kLower ? c : 0; i < rows; i += kBlock) {
      product(i, c, block);
      use(i, c, block);
    }
}

// Pairs of tokens, n of them in the block's rows: to[i][j] = block[i][j], of a block on the
// diagonal for j <= i, or j < i (strict), else 0; and its transpose, unless null.
void keep_block(const float* block, int64_t n, bool diagonal, bool strict, bf16* to,
                bf16* transposed);

// M[i][c] = passed[i] from[i][c] + made[i] block[i][c], rows `cols` apart; `from` may be null: 0,
// or M itself.  panels, unless null, become those of M.
struct StateBlock {
  const float *passed, *made, *from;
  int64_t cols;
};
void store_state(const float* block, const StateBlock& s, float* M, bf16* panels);

// The delta rule's X: x[i] = beta[i] (factors[i] v[i] - read[i]) + block[i], for the rows of v,
// else 0; read and block may be null: 0, factors: 1.  x has rows of `cols`; panels are of kBlock
// rows.
struct Asked {
  Matrix v;  // at most 32 x 32
  const float *beta, *factors, *read;
  int64_t cols;
};
void ask_block(const Asked& a, const float* block, float* x, bf16* panels);
// W = x + block as panels, and as `num` rows of bf16 where w is not null.
void write_block(const float* block, const float* x, int64_t cols, bf16* panels, bf16* w,
                 int64_t num);

// The delta rule back: block becomes R = x + block, lanes[i][..] += parts of w[i] . R[i], and
// -beta[i] R[i] are rows du and panels, and R panels, unless null.  beta is 0 in rows that do not
// exist.
struct Returned {
  const float* beta;
  const bf16* w;
  int64_t cols;
  bf16 *du, *du_panels, *r_panels;
  float* lanes;
};
void return_block(const Returned& r, const float* x, float* block);

// The gradient of rows `of`, in rows of `cols`.  products[i][c] += sign of[i][c] block[i][c], in
// rows of `cols` where they are elements, else in lanes of row i; null: not.  Then block is
// multiplied by by[i][c] or, if not elements, by[i], unless null; added to what was in `from`,
// unless null; and stored in rows `to_stride` apart, which may be those of the block itself.
struct Gradient {
  const bf16* of;
  const float* by;
  float* products;
  float sign;
  bool elements;
  int64_t cols;
};
void take_gradient(const Gradient& g, int64_t row, int64_t col, const float* block,
                   const float* from, float* to, int64_t to_stride);

// dots[i] = the sum of lanes[i].
void sum_lanes(const float* lanes, int64_t n, float* dots);

}  // namespace ashlar::kernels::cpu::amx
