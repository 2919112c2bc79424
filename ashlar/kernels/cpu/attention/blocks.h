// Shared by the blocked forward and backward: the blocks of 64 rows of k that each block of 64 rows
// of q meets, and products of such blocks with the packed inner loops of gemm/.
//
// Blocks are cut on a grid of rows, not of segments, so that memory depends on the numbers of rows
// only, for any documents.  A query row sees one range of key rows per key segment of its document;
// the p-th ranges of all rows together are pass p (one pass unless the keys of a document come in
// pieces).
#pragma once

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/attention/args.h"
#include "ashlar/kernels/cpu/attention/rows_args.h"
#include "ashlar/kernels/cpu/gemm/engine.h"

namespace ashlar::kernels::cpu {

inline int64_t num_blocks(int64_t rows) {
  return ceil_div(rows, kBlock);
}
// Rows of k, whether segments cover them or not.
inline int64_t num_key_rows(const AttentionArgs& call) {
  return call.k.numel() / (call.shape.K * call.shape.D);
}

// The first key segment of each query segment, and for each key segment the next of its document;
// -1: none.
class KeyLinks {
 public:
  explicit KeyLinks(const AttentionArgs& call);  // takes workspace; on meta does no more
  int32_t first(int64_t query_segment) const { return first_[query_segment]; }
  int32_t next(int64_t key_segment) const { return next_[key_segment]; }

 private:
  int32_t *first_ = nullptr, *next_ = nullptr;
};

// Rows of k that each row of a query block sees in one pass; begin == end: none.
struct BlockRanges {
  int32_t begin[kBlock], end[kBlock];
  int32_t lowest, highest;  // the lowest begin and the highest end; no row has any: INT_MAX, 0
  int64_t rows;             // in the block
  // False if no row has keys in this pass or a later one.
  bool fill(const AttentionArgs& call, const KeyLinks& links, int64_t pass, int64_t block);
  bool meets(int64_t key_block) const {
    return lowest < (key_block + 1) * kBlock && highest > key_block * kBlock;
  }
  // False if no row of [row_begin, row_end), counted in the block, sees a key of the block; others
  // see none.
  bool mask_for(int64_t key_block, int64_t row_begin, int64_t row_end, BlockMask& mask) const;
};

// Bytes of `columns` packed columns that reduce over k.
inline int64_t packed_bytes(const gemm::Engine& e, int64_t k, int64_t columns) {
  return (e.num_panels(columns) * e.panel_bytes(k) + 63) / 64 * 64;
}
// packed(k, c) = source[k][c], or source[c][k] if transposed.
void pack_block(const gemm::Engine& e, const gemm::Source& source, int64_t num_k,
                int64_t num_columns, bool transposed, std::byte* packed);

// A packed right operand: num_k by `columns`.
struct Packed {
  const std::byte* data;
  int64_t num_k;
  // The part from k (a multiple of the unit) and from `column` (a multiple of the width) on.
  Packed from(const gemm::Engine& e, int64_t k, int64_t column) const {
    return {data + column / e.width * e.panel_bytes(num_k) + k * e.width * size_of(e.element),
            num_k};
  }
};
// c [rows, columns up to a whole panel] (+)= A B over the first k of num_k; `a` in rows.
void multiply(const gemm::Engine& e, int64_t rows, int64_t columns, int64_t k, const gemm::Left& a,
              const Packed& b, float* c, int64_t c_stride, bool accumulate);
// c += A B, where A is the transpose of a packed block [k, rows].
void multiply_transposed(const gemm::Engine& e, int64_t rows, int64_t columns, int64_t k,
                         const Packed& a, const Packed& b, float* c, int64_t c_stride);
// Rows of a [T, heads * head size] tensor as a left operand: in place, or converted into `scratch`.
gemm::Left left_rows(const gemm::Engine& e, const gemm::Source& source, int64_t rows, int64_t num_k,
                     std::byte* scratch);

// The rows that share the number of columns to compute: body(row_begin, row_end, columns).
template <typename F>
void for_each_row_run(const BlockMask& mask, int64_t rows, F body) {
  for (int64_t begin = 0, end; begin < rows; begin = end) {
    const int32_t columns = mask.columns[begin / kRowGroup];
    end = begin + kRowGroup;
    while (end < rows && mask.columns[end / kRowGroup] == columns) end += kRowGroup;
    end = std::min(end, rows);
    if (columns > 0) body(begin, end, int64_t(columns));
  }
}

inline gemm::Source source_of(const Tensor& x, int64_t row, int64_t column, int64_t stride) {
  return gemm::Source{x.data, x.dtype, stride}.at(row, column);
}

// The engine for this call; null where the plain reference serves.
const gemm::Engine* attention_engine(const AttentionArgs& call);
void attention_forward_blocked(const gemm::Engine& engine, const AttentionArgs& call);
void attention_backward_blocked(const gemm::Engine& engine, const AttentionArgs& call,
                                const AttentionGradients& gradients);
// Whether every token of the call is a segment of its own.
bool decodes_each(const AttentionArgs& call);
// Few queries against many keys (decoding): reads keys and values once, packs nothing.
bool is_decode(const AttentionArgs& call);
void attention_decode(const AttentionArgs& call);

}  // namespace ashlar::kernels::cpu
