// Products of the small matrices of a tile on AMX, from operands in bf16 that stand ready.
//
//   rows     A: [rows, depth], `stride` elements apart
//   panels   B: [depth, cols] in panels of 32 columns, neighbours along the depth in pairs: element
//            (k, c) stands at (c / 32 * depth + k / 2 * 2) * 32 + c % 32 * 2 + k % 2
//
// All sizes are multiples of 32: what does not exist is zero.
#pragma once

#include <initializer_list>

#include "ashlar/tensor/dtype.h"

namespace ashlar::kernels::cpu::amx {

inline constexpr int64_t kBlock = 32;

// The part of A that is known to be zero, and is left out in whole blocks.
enum class Zeros { kNone, kAbove, kBelow };  // right of the diagonal, left of it

struct Term {
  const bf16* rows;
  int64_t stride;
  const bf16* panels;
  int64_t panel_depth;  // of a whole panel, of which the term may read a part
  int64_t depth;
  Zeros zeros = Zeros::kNone;
};

enum class Sums { kSet, kAdd };
// Which blocks of c are computed: all, or those not wholly right of its diagonal.
enum class Blocks { kAll, kLower };

// c [rows, cols] = the sum of the terms, or += it.  The thread's tiles are in use (InUse).
void multiply(int64_t rows, int64_t cols, std::initializer_list<Term> terms, float* c,
              int64_t c_stride, Sums sums = Sums::kSet, Blocks blocks = Blocks::kAll);

// The block of the sums at (row, col), in rows of kBlock.
void block_of(int64_t row, int64_t col, std::initializer_list<Term> terms, float* block);

// The tiles of this thread, shaped for multiply as long as the object lives.  So long vectors of
// the thread take denormals as 0, as tiles always do: strong decays make many.
class InUse {
 public:
  InUse();
  ~InUse();
  InUse(const InUse&) = delete;

 private:
  unsigned control_;
};

}  // namespace ashlar::kernels::cpu::amx
