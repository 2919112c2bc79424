// The vector loops of attention on rows of scores, for blocks of kBlock queries and kBlock keys.
#pragma once

#include <cstdint>

#include "ashlar/tensor/dtype.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kBlock = 64;     // queries and keys of one tile of scores
inline constexpr int64_t kRowGroup = 16;  // queries that share how many columns are computed
inline constexpr float kNoScore =
    -1e30f;  // the maximum of no scores; finite, so that differences are

// The keys of a block that the queries of a block see.  `columns` (a multiple of 16, per row group)
// covers every end of the group; scores right of it are not computed.
struct BlockMask {
  int32_t begin[kBlock], end[kBlock];
  int32_t columns[kBlock / kRowGroup];
};

// Online softmax of one block.  s [rows, kBlock] holds q.k and becomes exp(scale s - max), 0 where
// masked; max and sum are updated, and the rows of o [rows, o_stride], the weighted values so far,
// are scaled accordingly.
void softmax_block(const BlockMask& mask, int64_t rows, float scale, float* s, float* max,
                   float* sum, float* o, int64_t o_stride);

// The same for scores near 0, which need no maximum: p [rows, kBlock] becomes exp(scale s), 0 where
// masked; the sums of each row are updated, in lanes.  Returns false, with meaningless results, if
// an exponential could leave the range of floats: |scale s| > kMaxBoundedScore.
inline constexpr float kMaxBoundedScore =
    60.0f;  // e^60 times 10^6 keys times 10^6 is still a float
struct RowSums {
  float exact[16];    // of the exponentials
  float rounded[16];  // of what they are as bf16: weights over this sum add up to 1
};
bool exp_block(const BlockMask& mask, int64_t rows, float scale, const float* s, RowSums* sums,
               bf16* p);
float sum_lanes(const float* lanes);  // of 16

// s becomes P = exp(scale s - lse) and dp becomes dS = scale P (dp - delta); both 0 where masked,
// up to column kBlock.  lse and delta are `stride` elements apart.
void softmax_gradient_block(const BlockMask& mask, int64_t rows, float scale, const float* lse,
                            const float* delta, int64_t stride, float* s, float* dp);

// The same P and dS as bf16: packed to reduce over rows (panels of 32 columns, see gemm/, for an
// even number of rows: missing rows are zero), and dS also as rows [rows, kBlock], up to column
// mask.columns.
struct PackedScores {
  bf16 *p, *ds, *ds_rows;
};
void softmax_gradient_block(const BlockMask& mask, int64_t rows, float scale, const float* lse,
                            const float* delta, int64_t stride, const float* s, const float* dp,
                            const PackedScores& to);

// y = factor x for n elements.
void scale_to(const float* x, float factor, int64_t n, float* y);
void scale_to(const float* x, float factor, int64_t n, bf16* y);  // to nearest even
void add_to(const float* x, int64_t n, float* y);                 // y += x
float dot(const float* a, const float* b, int64_t n);
float dot(const bf16* a, const bf16* b, int64_t n);

// Scores and weighted sum of few queries that share keys, without packing.  q [num_queries, D]
// fp32; s [num_queries, kBlock] = q.k for `count` keys; o [num_queries, o_stride] += s v in its
// first V columns.  Rows of k and v are `stride` elements apart.  num_queries <= 4.
template <typename T>
void row_scores(int64_t num_queries, int64_t D, const float* q, const T* k, int64_t stride,
                int64_t count, float* s);
template <typename T>
void row_weighted_sum(int64_t num_queries, int64_t V, const float* s, const T* v, int64_t stride,
                      int64_t count, float* o, int64_t o_stride);

}  // namespace ashlar::kernels::cpu
