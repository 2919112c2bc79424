#include "ashlar/kernels/cpu/gemm_drive.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ashlar/core/error.h"

namespace ashlar::kernels::gemm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
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

constexpr int64_t kMaxTileFloats = 32 * 32, kLine = 64;

// c [rows, cols] of any type from a tile of floats.
void store_tile(const Engine& engine, const float* tile, int64_t rows, int64_t cols,
                const Matrix& c) {
  if (c.dtype == DType::kBF16 && engine.element == DType::kBF16 && cols == engine.width) {
    const Source source{reinterpret_cast<const std::byte*>(tile), DType::kF32, engine.width};
    engine.pack_rows(source, rows, cols, false, c.data, c.stride * 2);
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols; ++j) {
      const float value = tile[r * engine.width + j];
      if (c.dtype == DType::kBF16)
        reinterpret_cast<bf16*>(c.data)[r * c.stride + j] = bf16(value);
      else
        reinterpret_cast<float*>(c.data)[r * c.stride + j] = value;
    }
}

void load_tile(const Engine& engine, const Matrix& c, int64_t rows, int64_t cols, float* tile) {
  std::memset(tile, 0, kMaxTileFloats * sizeof(float));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols; ++j)
      tile[r * engine.width + j] =
          c.dtype == DType::kBF16 ? float(reinterpret_cast<const bf16*>(c.data)[r * c.stride + j])
                                  : reinterpret_cast<const float*>(c.data)[r * c.stride + j];
}

// How tiles leave their block of c.
enum class Write { kSet, kAdd, kStream };  // kStream: as kSet, and not read soon

// One tile into c [rows, cols]: in place where it can be, else through a buffer.
void run_tile(const Engine& engine, int64_t padded_k, const Left& left, const Panel& panel,
              const Matrix& c, Write write) {
  const bool whole = c.cols == engine.width, accumulate = write == Write::kAdd;
  if (whole && c.dtype == DType::kBF16 && engine.tile_to && !accumulate) {
    engine.tile_to(Store::kBf16, c.rows, padded_k, left, panel, c.data, c.stride * 2);
    return;
  }
  if (whole && c.dtype == DType::kF32) {
    if (write == Write::kStream)
      engine.tile_to(Store::kStream, c.rows, padded_k, left, panel, c.data, c.stride * 4);
    else
      engine.tile(c.rows, padded_k, left, panel, reinterpret_cast<float*>(c.data), c.stride,
                  accumulate);
    return;
  }
  alignas(64) float tile[kMaxTileFloats];
  if (accumulate) load_tile(engine, c, c.rows, c.cols, tile);
  engine.tile(c.rows, padded_k, left, panel, tile, engine.width, accumulate);
  store_tile(engine, tile, c.rows, c.cols, c);
}

// Brings a tile of c near while the one before it is computed: its rows lie too far apart for the
// hardware to foresee.
inline void prefetch(const std::byte* c, int64_t rows, int64_t row_bytes, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t r = 0; r < rows; ++r, c += row_bytes)
    for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(c + at, 1);
}

// First rows of the tiles of a block, and their end.
constexpr int64_t kMaxTiles = 16;
struct TileRows {
  int64_t count = 0;
  std::array<int64_t, kMaxTiles + 1> begin;
  TileRows(const Engine& engine, int64_t rows) : count(ceil_div(rows, engine.max_rows)) {
    ASHLAR_ASSERT(count <= kMaxTiles);
    for (int64_t t = 0; t <= count; ++t)
      begin[size_t(t)] =
          engine.whole_tiles ? std::min(rows, t * engine.max_rows) : rows * t / count;
  }
};

// Whether lines of c may bypass the caches.
bool can_stream(const Engine& engine, const Matrix& c) {
  constexpr int64_t kLine = 64;
  return engine.tile_to && c.dtype == DType::kF32 && uintptr_t(c.data) % kLine == 0 &&
         c.stride * size_of(c.dtype) % kLine == 0;
}

// Lines to bring near: columns of lines, one line for every step of k, `step` bytes apart.
struct Region {
  const std::byte* data = nullptr;
  int64_t step = 0, column_bytes = 0, columns = 0;
};
// `bytes` that follow each other, where a tile takes num_k steps.
Region region_of(const std::byte* data, int64_t bytes, int64_t num_k) {
  return {data, kLine, num_k * kLine, ceil_div(bytes, num_k * kLine)};
}
// `bytes` of each of num_k rows.
Region region_of_rows(const Source& rows, int64_t num_cols) {
  const int64_t size = size_of(rows.dtype);
  return {rows.data, rows.stride * size, kLine, ceil_div(num_cols * size, kLine)};
}

// What the next tiles fetch, one column each.
struct Fetches {
  Region soon, later;
  Panel with(const std::byte* panel) {
    Panel result(panel);
    Region& from = soon.columns > 0 ? soon : later;
    if (from.columns == 0) return result;
    result.ahead = from.data;
    result.ahead_step = from.step;
    from.data += from.column_bytes;
    --from.columns;
    return result;
  }
};

// c (+)= left B for panels that follow each other panel_bytes apart.
void run_block(const Engine& engine, int64_t padded_k, const Left& left, const std::byte* panels,
               int64_t panel_bytes, const Matrix& c, Write write, Fetches& fetches) {
  const TileRows tiles(engine, c.rows);
  const int64_t size = size_of(c.dtype), row_bytes = c.stride * size,
                tile_bytes = engine.width * size;
  if (write == Write::kStream && !can_stream(engine, c)) write = Write::kSet;
  if (engine.enter) engine.enter();
  for (int64_t n = 0; n < c.cols; n += engine.width, panels += panel_bytes) {
    std::byte* column = c.data + n * size;
    const int64_t cols = std::min(engine.width, c.cols - n);
    for (size_t t = 0; t < size_t(tiles.count); ++t) {
      const int64_t row = tiles.begin[t], next = tiles.begin[t + 1], rows = next - row;
      if (engine.fetches_c)
        ;
      else if (t + 1 < size_t(tiles.count))
        prefetch(column + next * row_bytes, tiles.begin[t + 2] - next, row_bytes, cols * size);
      else if (n + 2 * engine.width <= c.cols)
        prefetch(column + tile_bytes, tiles.begin[1], row_bytes, tile_bytes);
      const Left a{left.data + row * left.row_bytes, left.row_bytes, left.step_bytes};
      const Matrix tile{column + row * row_bytes, c.dtype, rows, cols, c.stride};
      run_tile(engine, padded_k, a, fetches.with(panels), tile, write);
    }
  }
  if (write == Write::kStream) engine.settle();
  if (engine.leave) engine.leave();
}

void zero_block(const Matrix& c) {
  for (int64_t r = 0; r < c.rows; ++r)
    std::memset(c.data + r * c.stride * size_of(c.dtype), 0, size_t(c.cols * size_of(c.dtype)));
}

// Rows of `a` that a task copies, a part of K at a time.
constexpr int64_t kCopyRowBytes = 1024 + 64, kCopyBytes = 224 * kCopyRowBytes;

// Rows and panels of one task: its panels fill half of a second-level cache, its work is long
// enough to hide the hand-over and short enough that the last tasks end together.
struct TaskSize {
  int64_t rows, panels;
};
TaskSize task_size(const Engine& engine, int64_t K, int64_t N) {
  constexpr int64_t kPanelBytes = 256 << 10, kMultiplyAdds = 8 << 20, kTiles = 8;
  const int64_t panels =
      std::clamp<int64_t>(kPanelBytes / engine.panel_bytes(K), 1, engine.num_panels(N));
  const int64_t rows = kMultiplyAdds / (panels * engine.width * std::max<int64_t>(K, 1));
  return {std::clamp(rows, 2 * engine.max_rows, kTiles * engine.max_rows) / engine.max_rows *
              engine.max_rows,
          panels};
}

// Whether so many equal tasks keep all threads busy to the end, or nearly.
bool keeps_busy(int64_t tasks, int64_t threads) {
  return tasks % threads == 0 || tasks >= 4 * threads;
}

// Panels of one task where a product is summed in parts, for `others` tasks each: as many as fit
// beside rows and sums in a second-level cache, fewer where threads would wait.
int64_t even_panels(int64_t num_panels, int64_t others, int64_t threads) {
  constexpr int64_t kMostPanels = 24;
  int64_t cuts = ceil_div(num_panels, kMostPanels);
  while (cuts < num_panels && !keeps_busy(cuts * others, threads)) ++cuts;
  return ceil_div(num_panels, cuts);
}

int64_t element_bytes(const Engine& engine) {
  return size_of(engine.element);
}

// Rows of `a` in the engine's type, every group's columns padded; `a` itself where that fits as it
// is.
struct Rows {
  const std::byte* data;
  int64_t row_bytes, group_bytes;
};

bool rows_fit(const Engine& engine, const Matrix& a, int64_t K) {
  // Rows a multiple of a page apart fall into few sets of the first-level cache.
  constexpr int64_t kPage = 4096;
  return a.dtype == engine.element && !engine.round && K % engine.k_pad == 0 &&
         a.stride * element_bytes(engine) % kPage != 0;
}

Rows take_rows(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t K,
               const Matrix& a) {
  const int64_t size = element_bytes(engine);
  if (rows_fit(engine, a, K)) return {a.data, a.stride * size, K * size};
  constexpr int64_t kLine = 64, kPage = 4096;
  const int64_t group_bytes = engine.padded(K) * size;
  int64_t row_bytes = ceil_div(num_groups * group_bytes, kLine) * kLine;
  if (row_bytes % kPage == 0) row_bytes += kLine;
  const Tensor copy = ctx.workspace->take(DType::kU8, {a.rows, row_bytes});
  if (ctx.meta()) return {};
  constexpr int64_t kGrain = 32;
  parallel_for(*ctx.threads, a.rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t g = 0; g < num_groups; ++g)
      engine.pack_rows(Source{a.data, a.dtype, a.stride}.at(begin, g * K), end - begin, K,
                       engine.round, copy.data + begin * row_bytes + g * group_bytes, row_bytes);
  });
  return {copy.data, row_bytes, group_bytes};
}

// A matrix packed along its rows (tokens): panels of all columns, every group's tokens from an own
// offset.
struct TokenPanels {
  std::byte* data = nullptr;
  int64_t depth = 0;         // tokens, padded, of all groups together
  int64_t panel_bytes = 0;   // from panel to panel, or from row to row where rows are transposed
  int64_t group_panels = 0;  // panels of one column group
};

// Groups that own rows stand at offsets rounded up, so that none shares a padded pair with the
// next.
int64_t token_offset(const Engine& engine, const Groups& groups, int64_t g) {
  return groups.own_rows() && g > 0
             ? engine.padded(groups.row_of_group[size_t(g)]) + g * engine.k_pad
             : 0;
}
int64_t token_depth(const Engine& engine, const Groups& groups, int64_t num_tokens) {
  return engine.padded(num_tokens) + (groups.own_rows() ? groups.count * engine.k_pad : 0);
}

TokenPanels take_panels(const Context& ctx, const Engine& engine, const Groups& groups,
                        int64_t num_tokens, int64_t group_cols) {
  TokenPanels panels;
  panels.depth = token_depth(engine, groups, num_tokens);
  constexpr int64_t kPage = 4096;
  if (panels.depth * element_bytes(engine) % kPage == 0)
    panels.depth += engine.k_pad;  // see rows_fit
  panels.panel_bytes = panels.depth * engine.width * element_bytes(engine);
  panels.group_panels = engine.num_panels(group_cols);
  const int64_t column_groups = groups.own_rows() ? 1 : groups.count;
  panels.data =
      ctx.workspace->take(DType::kU8, {column_groups * panels.group_panels * panels.panel_bytes})
          .data;
  return panels;
}

// Fills panels from `from`; transposed_rows: as rows of tokens for engines whose left operand is
// one.
void pack_tokens(const Context& ctx, const Engine& engine, const Groups& groups,
                 std::span<const int32_t> row_of_group, const Matrix& from,
                 const TokenPanels& panels, bool transposed_rows) {
  constexpr int64_t kTokens = 128, kPanels = 8;
  const RowBlocks blocks(row_of_group, kTokens, false);  // whole pairs
  const int64_t column_groups = groups.own_rows() ? 1 : groups.count;
  const int64_t group_cols = from.cols / column_groups;
  const int64_t panel_blocks = ceil_div(panels.group_panels, kPanels);
  ctx.threads->run(blocks.count() * column_groups * panel_blocks, [&](int64_t task, int) {
    const int64_t first = task % panel_blocks * kPanels,
                  column_group = task / panel_blocks % column_groups;
    const auto block = blocks[task / panel_blocks / column_groups];
    const int64_t depth =
        token_offset(engine, groups, block.group) + block.begin - row_of_group[size_t(block.group)];
    for (int64_t p = first; p < std::min(first + kPanels, panels.group_panels); ++p) {
      const int64_t col = p * engine.width, cols = std::min(engine.width, group_cols - col);
      const Source source = Source{from.data, from.dtype, from.stride}.at(
          block.begin, column_group * group_cols + col);
      std::byte* panel =
          panels.data + (column_group * panels.group_panels + p) * panels.panel_bytes;
      const int64_t size = element_bytes(engine);
      if (transposed_rows)
        engine.pack_rows_transposed(source, block.end - block.begin, cols, panel + depth * size,
                                    panels.depth * size);
      else
        engine.pack_panel(source, block.end - block.begin, cols, engine.round,
                          panel + depth * engine.width * size);
    }
  });
}

}  // namespace

void multiply(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N, int64_t K,
              const Matrix& a, const std::byte* panels, const Matrix& c, bool accumulate) {
  const bool own_rows = groups.own_rows();
  const int64_t column_groups = own_rows ? 1 : groups.count;
  const Arena::Scope scope(*ctx.workspace);
  const bool in_parts = engine.k_block != kWholeDepth && c.dtype == DType::kF32;
  const Parts parts(engine, K);
  const bool copies = in_parts && !rows_fit(engine, a, K);
  const Rows rows = copies ? Rows{} : take_rows(ctx, engine, column_groups, K, a);
  if (ctx.meta()) return;
  const int32_t all_rows[2] = {0, int32_t(a.rows)};
  TaskSize size = in_parts ? TaskSize{kMaxTiles * engine.max_rows, engine.num_panels(N)}
                           : task_size(engine, K, N);
  const RowBlocks blocks(own_rows ? groups.row_of_group : std::span<const int32_t>(all_rows),
                         size.rows, !engine.whole_tiles);
  if (in_parts)
    size.panels = even_panels(size.panels, blocks.count() * column_groups, ctx.threads->size());
  const int64_t panel_blocks = ceil_div(engine.num_panels(N), size.panels);
  const int64_t panel_bytes = engine.panel_bytes(K), bytes = element_bytes(engine);
  // The larger operand passes through the caches once: weights of one group, or rows.
  const bool weights_once = in_parts && groups.count == 1 && N > a.rows;
  const int64_t others = panel_blocks * column_groups;
  ctx.threads->run(blocks.count() * others, [&](int64_t task, int) {
    const int64_t other = weights_once ? task / blocks.count() : task % others;
    const auto block = blocks[weights_once ? task % blocks.count() : task / others];
    const int64_t first = other % panel_blocks * size.panels, column_group = other / panel_blocks;
    const int64_t group = own_rows ? block.group : column_group;
    const int64_t col = first * engine.width, end = std::min(col + size.panels * engine.width, N);
    const Matrix part =
        c.row_range(block.begin, block.end).columns(column_group * N + col, column_group * N + end);
    const std::byte* task_panels = panels + (group * engine.num_panels(N) + first) * panel_bytes;
    const Left left{rows.data + block.begin * rows.row_bytes + column_group * rows.group_bytes,
                    rows.row_bytes, engine.unit * bytes};
    const Source rows_of_a = Source{a.data, a.dtype, a.stride}.at(block.begin, column_group * K);
    alignas(64) std::byte copy[kCopyBytes];
    if (!in_parts) {
      Fetches none;
      run_block(engine, parts.padded_k, left, task_panels, panel_bytes, part,
                accumulate ? Write::kAdd : Write::kSet, none);
      return;
    }
    const auto panel = [&](int64_t p, int64_t i) {
      return task_panels + p * panel_bytes + parts.begin(i) * engine.width * bytes;
    };
    for (int64_t i = 0; i < parts.count; ++i) {
      const int64_t k = parts.begin(i), num_k = parts.size(i);
      Left left_part{left.data + k * bytes, left.row_bytes, bytes};
      if (copies) {
        ASHLAR_ASSERT(part.rows * kCopyRowBytes <= kCopyBytes && num_k * bytes <= kCopyRowBytes);
        engine.pack_rows(rows_of_a.at(0, k), part.rows, num_k, engine.round, copy, kCopyRowBytes);
        left_part = {copy, kCopyRowBytes, bytes};
      }
      const int64_t num_panels = ceil_div(part.cols, engine.width);
      // Rows of the next part, or of the task that this thread is likely to take next.
      Fetches fetches;
      fetches.later =
          i + 1 < parts.count
              ? region_of_rows(rows_of_a.at(0, k + num_k), parts.size(i + 1))
              : region_of_rows(rows_of_a.at(part.rows * ctx.threads->size(), 0), parts.size(0));
      for (int64_t p = 0; p < num_panels; ++p) {
        const std::byte* next = p + 1 < num_panels ? panel(p + 1, i) : panel(0, i + 1);
        fetches.soon = region_of(next, engine.width * num_k * bytes, num_k);
        run_block(engine, num_k, left_part, panel(p, i), 0,
                  part.columns(p * engine.width, std::min((p + 1) * engine.width, part.cols)),
                  accumulate || i > 0 ? Write::kAdd : Write::kSet, fetches);
      }
    }
  });
}

// The cut of dw [N, K] into tasks of whole panels on both sides.  Where groups have few tokens, a
// task covers all columns and packs its own rows of dy^T, `chunk` tokens at a time: they never
// leave its cache.
struct ReduceSize {
  static constexpr int64_t kLeftBytes = 128 << 10, kFewTokens = 512;
  int64_t row_panels, col_panels;
  int64_t chunk;  // 0: dy is packed before
};
ReduceSize reduce_size(const Engine& engine, int64_t tokens, int64_t N, int64_t K) {
  constexpr int64_t kRowPanels = 4, kChunk = 64;
  if (tokens > ReduceSize::kFewTokens) {
    const TaskSize size = task_size(engine, tokens, K);
    return {std::max<int64_t>(1, size.rows / engine.width), size.panels, 0};
  }
  const int64_t row_panels = std::min(kRowPanels, engine.num_panels(N));
  return {row_panels, engine.num_panels(K),
          ReduceSize::kLeftBytes / (row_panels * engine.width * element_bytes(engine)) / kChunk *
              kChunk};
}

// Columns of `from` packed along its rows as left operands, one panel after the other.
void pack_left(const Engine& engine, const Source& from, int64_t tokens, int64_t cols,
               int64_t depth, std::byte* panels) {
  constexpr int64_t kTokens = 32;
  const int64_t size = element_bytes(engine), panel_bytes = depth * engine.width * size;
  for (int64_t t = 0; t < tokens; t += kTokens) {
    const int64_t num_tokens = std::min(kTokens, tokens - t);
    std::byte* panel = panels;
    for (int64_t col = 0; col < cols; col += engine.width, panel += panel_bytes) {
      const int64_t num_cols = std::min(engine.width, cols - col);
      if (engine.pack_rows_transposed)
        engine.pack_rows_transposed(from.at(t, col), num_tokens, num_cols, panel + t * size,
                                    depth * size);
      else
        engine.pack_panel(from.at(t, col), num_tokens, num_cols, engine.round,
                          panel + t * engine.width * size);
    }
  }
}

// The same in parts of tokens, for engines that cut sums: a task packs its part of x and, block of
// rows after block, of dy^T, and fetches the next part meanwhile.
struct PartsSize {
  static constexpr int64_t kPanelBytes = 16 << 10;  // of a part; two lie in the first-level cache
  static constexpr int64_t kRowPanels = 8, kColPanels = 32;  // of a block
  int64_t row_panels, task_panels, row_tasks, col_panels, col_tasks;
  // Tasks as large as keep all threads busy to the end; bits do not depend on them.
  PartsSize(const Engine& engine, int64_t groups, int64_t N, int64_t K, int64_t threads)
      : row_panels(std::min(kRowPanels, engine.num_panels(N))),
        task_panels(engine.num_panels(N)),
        col_panels(std::min(kColPanels, engine.num_panels(K))) {
    for (;;) {
      row_tasks = ceil_div(engine.num_panels(N), task_panels);
      col_tasks = ceil_div(engine.num_panels(K), col_panels);
      const int64_t tasks = groups * row_tasks * col_tasks;
      if (keeps_busy(tasks, threads) || task_panels * col_panels == 1) break;
      int64_t& larger = task_panels >= col_panels ? task_panels : col_panels;
      larger = ceil_div(larger, 2);
    }
  }
};

void reduce_in_parts(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                     int64_t K, const Matrix& dy, const Matrix& x, float* dw, bool accumulate) {
  if (ctx.meta()) return;
  const bool own_rows = groups.own_rows();
  const int64_t width = engine.width, bytes = element_bytes(engine);
  const int64_t part_tokens = PartsSize::kPanelBytes / (width * bytes);
  const PartsSize size(engine, groups.count, N, K, ctx.threads->size());
  ctx.threads->run(groups.count * size.row_tasks * size.col_tasks, [&](int64_t task, int) {
    const int64_t g = task / size.col_tasks / size.row_tasks, column_group = own_rows ? 0 : g;
    const int64_t first_row = task / size.col_tasks % size.row_tasks * size.task_panels * width,
                  last_row = std::min(first_row + size.task_panels * width, N),
                  col = task % size.col_tasks * size.col_panels * width,
                  cols = std::min(size.col_panels * width, K - col);
    const int64_t begin = own_rows ? groups.row_of_group[size_t(g)] : 0,
                  tokens = (own_rows ? groups.row_of_group[size_t(g) + 1] : x.rows) - begin,
                  parts = ceil_div(tokens, part_tokens);
    const Matrix c{reinterpret_cast<std::byte*>(dw + g * N * K + col), DType::kF32, N, cols, K};
    if (tokens == 0 && !accumulate) zero_block(c.row_range(first_row, last_row));
    const Source from_dy = Source{dy.data, dy.dtype, dy.stride}.at(begin, column_group * N),
                 from_x = Source{x.data, x.dtype, x.stride}.at(begin, column_group * K + col);
    alignas(64) std::byte left[PartsSize::kRowPanels * PartsSize::kPanelBytes];
    alignas(64) std::byte right[PartsSize::kColPanels * PartsSize::kPanelBytes];
    const int64_t block = size.row_panels * width;
    const int64_t part_bytes = engine.num_panels(cols) * PartsSize::kPanelBytes;
    const bool keeps = parts * part_bytes <= int64_t{sizeof right};  // all parts of x
    for (int64_t row = first_row; row < last_row; row += block)
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t t = tokens * i / parts, next = tokens * (i + 1) / parts, num_k = next - t;
        const int64_t rows = std::min(block, last_row - row), panel_bytes = num_k * width * bytes;
        std::byte* panels = keeps ? right + i * part_bytes : right;
        if (!keeps || row == first_row)
          pack_left(engine, from_x.at(t, 0), num_k, cols, num_k, panels);
        pack_left(engine, from_dy.at(t, row), num_k, rows, num_k, left);
        Fetches fetches;
        if (i + 1 < parts)
          fetches = {region_of_rows(from_dy.at(next, row), rows),
                     region_of_rows(from_x.at(next, 0), cols)};
        else if (row + block < last_row)
          fetches = {region_of_rows(from_dy.at(0, row + block), block),
                     region_of_rows(from_x, cols)};
        if (keeps && row > first_row) fetches.later = {};
        const Write write = accumulate || i > 0 ? Write::kAdd : Write::kSet;
        for (int64_t r = 0; r < rows; r += width)
          run_block(engine, num_k, {left + r / width * panel_bytes, bytes, width * bytes}, panels,
                    panel_bytes, c.row_range(row + r, row + std::min(r + width, rows)), write,
                    fetches);
      }
  });
}

void reduce(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N, int64_t K,
            const Matrix& dy, const Matrix& x, float* dw, bool accumulate) {
  if (engine.k_block != kWholeDepth)
    return reduce_in_parts(ctx, engine, groups, N, K, dy, x, dw, accumulate);
  const bool own_rows = groups.own_rows(), row_tiles = engine.pack_rows_transposed != nullptr;
  const int64_t tokens = std::max<int64_t>(1, dy.rows / (own_rows ? groups.count : 1));
  const ReduceSize size = reduce_size(engine, tokens, N, K);
  const Arena::Scope scope(*ctx.workspace);
  const TokenPanels all_left =
      size.chunk ? TokenPanels{} : take_panels(ctx, engine, groups, dy.rows, N);
  const TokenPanels right = take_panels(ctx, engine, groups, x.rows, K);
  if (ctx.meta()) return;
  const int32_t all_rows[2] = {0, int32_t(dy.rows)};
  const std::span<const int32_t> row_of_group =
      own_rows ? groups.row_of_group : std::span<const int32_t>(all_rows);
  pack_tokens(ctx, engine, groups, row_of_group, x, right, false);
  if (!size.chunk) pack_tokens(ctx, engine, groups, row_of_group, dy, all_left, row_tiles);

  const int64_t row_blocks = ceil_div(engine.num_panels(N), size.row_panels);
  const int64_t col_blocks = ceil_div(right.group_panels, size.col_panels);
  const int64_t bytes = element_bytes(engine), pair_bytes = engine.unit * bytes;
  ctx.threads->run(groups.count * row_blocks * col_blocks, [&](int64_t task, int) {
    const int64_t first = task % col_blocks * size.col_panels,
                  row = task / col_blocks % row_blocks * size.row_panels * engine.width;
    const int64_t g = task / col_blocks / row_blocks, column_group = own_rows ? 0 : g;
    const int64_t begin = row_of_group[own_rows ? size_t(g) : 0],
                  end = row_of_group[own_rows ? size_t(g) + 1 : 1];
    const int64_t rows = std::min(size.row_panels * engine.width, N - row),
                  col = first * engine.width,
                  cols = std::min(size.col_panels * engine.width, K - col);
    const Matrix part{reinterpret_cast<std::byte*>(dw + (g * N + row) * K + col), DType::kF32, rows,
                      cols, K};
    if (begin == end && !accumulate) zero_block(part);
    const int64_t offset = token_offset(engine, groups, g);
    const std::byte* panels = right.data +
                              (column_group * right.group_panels + first) * right.panel_bytes +
                              offset * engine.width * bytes;
    const Source source = Source{dy.data, dy.dtype, dy.stride}.at(0, column_group * N + row);
    Fetches none;
    alignas(64) std::byte own_left[ReduceSize::kLeftBytes];
    const int64_t step = size.chunk ? size.chunk : std::max<int64_t>(1, end - begin);
    for (int64_t t = begin; t < end; t += step) {
      const int64_t chunk = std::min(step, end - t), depth = engine.padded(chunk);
      const std::byte* left = own_left;
      int64_t left_depth = depth;
      if (size.chunk) {
        pack_left(engine, source.at(t, 0), chunk, rows, depth, own_left);
      } else {
        left_depth = all_left.depth;
        left = all_left.data +
               (column_group * all_left.group_panels + row / engine.width) * all_left.panel_bytes +
               offset * (row_tiles ? 1 : engine.width) * bytes;
      }
      const Write write = accumulate || t > begin          ? Write::kAdd
                          : t + chunk < end || !size.chunk ? Write::kSet
                                                           : Write::kStream;
      for (int64_t r = 0; r < rows; r += engine.width) {
        const Left a{left + r * left_depth * bytes, row_tiles ? left_depth * bytes : pair_bytes,
                     row_tiles ? pair_bytes : pair_bytes * engine.width};
        run_block(engine, depth, a, panels + (t - begin) * engine.width * bytes, right.panel_bytes,
                  part.row_range(r, std::min(r + engine.width, rows)), write, none);
      }
    }
  });
}

}  // namespace ashlar::kernels::gemm
