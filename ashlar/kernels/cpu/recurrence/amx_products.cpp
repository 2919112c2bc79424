// How it works.  A block of 32 x 32 sums takes four tile registers, a step of 32 along the depth
// four loads and four multiplications, as in gemm/amx.cpp.  Several terms add to the sums while
// they are in registers.  Blocks go down the columns, so that a panel stays in the first-level
// cache, which need not hold the whole right operand, as of a state of 128 x 128.
#include "ashlar/kernels/cpu/recurrence/amx_products.h"

#include <algorithm>

#if defined(__x86_64__)
#include "ashlar/kernels/cpu/gemm/amx_tiles.h"

namespace ashlar::kernels::cpu::amx {
namespace {

constexpr int64_t kHalf = 16, kPanelRow = 2 * kBlock;  // elements of a pair of rows in a panel

[[gnu::target("amx-tile,amx-bf16"), gnu::always_inline]] inline void add_term(const Term& term,
                                                                              int64_t row,
                                                                              int64_t col) {
  const int64_t first = term.zeros == Zeros::kBelow ? row : 0,
                end = term.zeros == Zeros::kAbove ? std::min(term.depth, row + kBlock) : term.depth;
  const bf16 *upper = term.rows + row * term.stride + first, *lower = upper + kHalf * term.stride;
  const bf16* panel = term.panels + (col / kBlock * term.panel_depth + first) * kBlock;
  for (int64_t k = first; k < end; k += kBlock) {
    load<4>(upper, term.stride * 2);
    load<6>(panel, kPanelRow * 2);
    load<7>(panel + kBlock, kPanelRow * 2);
    load<5>(lower, term.stride * 2);
    multiply_add<0, 4, 6>();
    multiply_add<1, 4, 7>();
    multiply_add<2, 5, 6>();
    multiply_add<3, 5, 7>();
    upper += kBlock;
    lower += kBlock;
    panel += kBlock * kBlock;
  }
}

}  // namespace

[[gnu::target("amx-tile,amx-bf16")]] void multiply(int64_t rows, int64_t cols,
                                                   std::initializer_list<Term> terms, float* c,
                                                   int64_t c_stride, Sums sums, Blocks blocks) {
  const int64_t c_bytes = c_stride * 4;
  for (int64_t col = 0; col < cols; col += kBlock)
    for (int64_t row = blocks == Blocks::kLower ? col : 0; row < rows; row += kBlock) {
      float *upper = c + row * c_stride + col, *lower = upper + kHalf * c_stride;
      if (sums == Sums::kAdd) {
        load<0>(upper, c_bytes);
        load<1>(upper + kHalf, c_bytes);
        load<2>(lower, c_bytes);
        load<3>(lower + kHalf, c_bytes);
      } else {
        zero<0>();
        zero<1>();
        zero<2>();
        zero<3>();
      }
      for (const Term& term : terms) add_term(term, row, col);
      store<0>(upper, c_bytes);
      store<1>(upper + kHalf, c_bytes);
      store<2>(lower, c_bytes);
      store<3>(lower + kHalf, c_bytes);
    }
}

[[gnu::target("amx-tile,amx-bf16")]] void block_of(int64_t row, int64_t col,
                                                   std::initializer_list<Term> terms,
                                                   float* block) {
  zero<0>();
  zero<1>();
  zero<2>();
  zero<3>();
  for (const Term& term : terms) add_term(term, row, col);
  store<0>(block, kBlock * 4);
  store<1>(block + kHalf, kBlock * 4);
  store<2>(block + kHalf * kBlock, kBlock * 4);
  store<3>(block + kHalf * kBlock + kHalf, kBlock * 4);
}

[[gnu::target("amx-tile,amx-bf16")]] InUse::InUse() : control_(__builtin_ia32_stmxcsr()) {
  constexpr unsigned kZeroForDenormals = 0x8040;
  __builtin_ia32_ldmxcsr(control_ | kZeroForDenormals);
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = uint8_t(kHalf);
    config.row_bytes[i] = 64;
  }
  load_config(config);
}
[[gnu::target("amx-tile,amx-bf16")]] InUse::~InUse() {
  __builtin_ia32_sfence();  // passes store past the caches
  release();
  __builtin_ia32_ldmxcsr(control_);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
