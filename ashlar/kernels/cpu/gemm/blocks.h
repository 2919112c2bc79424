// Shared by products of whole matrices: ranges of rows, and blocks of c from the tiles of an
// Engine.
#pragma once

#include <algorithm>
#include <span>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/gemm/drive.h"

namespace ashlar::kernels::cpu::gemm {

inline constexpr int64_t kLine = 64, kMaxTiles = 16;  // tiles of a block, one above the other

inline int64_t element_bytes(const Engine& engine) {
  return size_of(engine.element);
}

// Ranges of rows, cut inside each group into pieces of `size`, or into even pieces of at most
// `size`.
class RowBlocks {
 public:
  struct Block {
    int64_t group, begin, end;
  };
  RowBlocks(std::span<const int32_t> row_of_group, int64_t size, bool even = true)
      : rows_(row_of_group), size_(size), even_(even) {
    for (size_t g = 0; g + 1 < rows_.size(); ++g) count_ += blocks_of(g);
  }
  int64_t count() const { return count_; }
  Block operator[](int64_t index) const {
    size_t g = 0;
    for (; index >= blocks_of(g); ++g) index -= blocks_of(g);
    const int64_t rows = rows_[g + 1] - rows_[g], blocks = blocks_of(g);
    if (!even_)
      return {int64_t(g), rows_[g] + index * size_, rows_[g] + std::min(rows, (index + 1) * size_)};
    return {int64_t(g), rows_[g] + rows * index / blocks, rows_[g] + rows * (index + 1) / blocks};
  }

 private:
  int64_t blocks_of(size_t g) const { return ceil_div(rows_[g + 1] - rows_[g], size_); }
  std::span<const int32_t> rows_;
  int64_t size_, count_ = 0;
  bool even_;
};

// Rows of a left operand in the engine's type, every group's columns padded.
struct Rows {
  const std::byte* data;
  int64_t row_bytes, group_bytes;
};
// Copies `a` [., num_groups * K] to the workspace; where it fits as it is, these are `a` itself.
Rows take_rows(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t K,
               const Matrix& a);

// How tiles leave their block of c.
enum class Write { kSet, kAdd, kStream };  // kStream: as kSet, and not read soon

// Lines to bring near: columns of lines, one line for every step of k, `step` bytes apart.
struct Region {
  const std::byte* data = nullptr;
  int64_t step = 0, column_bytes = 0, columns = 0;
};
// `bytes` that follow each other, spread over the steps of num_tiles tiles of num_k steps.
Region region_of(const std::byte* data, int64_t bytes, int64_t num_k, int64_t num_tiles);
// num_cols elements of each row, of as many rows as a tile takes steps.
Region region_of_rows(const Source& rows, int64_t num_cols);

// The regions that the next tiles prefetch, one column each.
struct Fetches {
  Region soon, later;
  Panel with(const std::byte* panel);
};

// c (+)= left B for panels that follow each other panel_bytes apart.
void run_block(const Engine& engine, int64_t padded_k, const Left& left, const std::byte* panels,
               int64_t panel_bytes, const Matrix& c, Write write, Fetches& fetches);
void zero_block(const Matrix& c);

// Rows and panels of one task: its panels fill half of a second-level cache, its work is long
// enough to hide the hand-over and short enough that the last tasks end together.
struct TaskSize {
  int64_t rows, panels;
};
TaskSize task_size(const Engine& engine, int64_t K, int64_t N);

// Whether this number of equal tasks keeps all threads busy to the end, or nearly.
bool keeps_busy(int64_t tasks, int64_t threads);

}  // namespace ashlar::kernels::cpu::gemm
