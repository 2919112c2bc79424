// Products that reduce over tokens: gradients of weights.
//
// How it works.  dw = dy^T x sums over tokens: both operands are packed along tokens during the
// call.
//
//   engines that do not cut sums (bf16; those that make strips: strips.cpp)
//     x first, by all threads: panels of all tokens, in the workspace (pack_tokens)
//     for each task, up to 4 panels of rows of dw with all columns, in chunks of the tokens:
//       pack the chunk of dy^T, on the stack
//       run_block over all panels of x, which sets the rows of dw, or adds to them
//   engines that cut sums (fp32): reduce_in_parts, for each task
//     for each part of the tokens                        16 KiB a panel
//       pack the part of x, on the stack
//       for each block of rows of dw                     up to 4 panels of dy
//         pack the part of dy, on the stack
//         for each panel of dy: run_block over all panels of x
//
// The cut of tokens depends on shapes only, and each element is summed by one task, so bits do not
// depend on threads.
#include "ashlar/core/error.h"
#include "ashlar/kernels/cpu/gemm/blocks.h"
#include "ashlar/kernels/cpu/gemm/strips.h"

namespace ashlar::kernels::cpu::gemm {
namespace {

// A matrix packed along its rows (tokens): panels of all columns, every group's tokens from an own
// offset.
struct TokenPanels {
  std::byte* data = nullptr;
  int64_t depth = 0;         // tokens, padded, of all groups together
  int64_t panel_bytes = 0;   // from panel to panel
  int64_t group_panels = 0;  // panels of one column group
};

// Groups that own rows start at offsets rounded up, plus k_pad for each group before, so that the
// zeros behind a group's tokens do not reach into the next group.
int64_t token_offset(const Engine& engine, const Groups& groups, int64_t g) {
  return groups.own_rows && g > 0 ? engine.padded(groups.row_of_group[size_t(g)]) + g * engine.k_pad
                                  : 0;
}
int64_t token_depth(const Engine& engine, const Groups& groups, int64_t num_tokens) {
  return engine.padded(num_tokens) + (groups.own_rows ? groups.count * engine.k_pad : 0);
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
  const int64_t column_groups = groups.own_rows ? 1 : groups.count;
  panels.data =
      ctx.workspace->take(DType::kU8, {column_groups * panels.group_panels * panels.panel_bytes})
          .data;
  return panels;
}

// Fills panels from `from`.
void pack_tokens(const Context& ctx, const Engine& engine, const Groups& groups,
                 std::span<const int32_t> row_of_group, const Matrix& from,
                 const TokenPanels& panels) {
  constexpr int64_t kTokens = 128, kPanels = 8;
  const RowBlocks blocks(row_of_group, kTokens, false);  // cut at multiples: no pair is torn
  const int64_t column_groups = groups.own_rows ? 1 : groups.count;
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
      engine.pack_panel(source, block.end - block.begin, cols, engine.round,
                        panel + depth * engine.width * size);
    }
  });
}

// The cut of dw [N, K] into tasks of whole panels on both sides, as large as keep all threads busy
// to the end, or as the form says.  Rows are cut before columns: tasks that share rows pack the
// same dy.
struct ReduceSize {
  static constexpr int64_t kRowPanels = 4, kChunk = 512;  // tokens
  static constexpr int64_t kLeftBytes = 128 << 10;        // a chunk of dy^T, whose panels are bf16
  int64_t row_panels, row_blocks, col_panels, col_blocks;
  ReduceSize(const Engine& engine, int64_t groups, int64_t N, int64_t K, int64_t threads,
             const ProductForm& form) {
    const int64_t all_rows = engine.num_panels(N), all_cols = engine.num_panels(K);
    row_panels = std::min(kRowPanels, all_rows);
    col_panels = all_cols;
    while (row_panels * col_panels > 1 &&
           !keeps_busy(groups * ceil_div(all_rows, row_panels) * ceil_div(all_cols, col_panels),
                       threads)) {
      int64_t& cut = row_panels > 1 ? row_panels : col_panels;
      cut = ceil_div(cut, 2);
    }
    if (form.rows > 0)
      row_panels = std::clamp<int64_t>(form.rows / engine.width, 1, std::min(kRowPanels, all_rows));
    col_panels = panels_of_task(form, col_panels, all_cols);
    row_blocks = ceil_div(all_rows, row_panels);
    col_blocks = ceil_div(all_cols, col_panels);
  }
};

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
      engine.pack_panel(from.at(t, col), num_tokens, num_cols, engine.round,
                        panel + t * engine.width * size);
    }
  }
}

// The cut of dw [N, K] into tasks where sums are cut into parts of tokens (k_block): a task packs
// its part of x and, block of rows after block, of dy^T, and fetches the next part meanwhile.
struct PartsSize {
  // A part is as many tokens as make a panel of kPanelBytes: two lie in the first-level cache.
  static constexpr int64_t kPanelBytes = 16 << 10;
  static constexpr int64_t kRowPanels = 4, kColPanels = 32;  // a block has at most so many
  int64_t row_panels, task_panels, row_tasks, col_panels, col_tasks;
  // Even tasks, as large as keep all threads busy to the end, or as the form says; bits do not
  // depend on them.
  PartsSize(const Engine& engine, int64_t groups, int64_t N, int64_t K, int64_t threads,
            const ProductForm& form)
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
    const int64_t all_rows = engine.num_panels(N), all_cols = engine.num_panels(K);
    task_panels = ceil_div(all_rows, row_tasks);
    col_panels = ceil_div(all_cols, col_tasks);
    if (form.rows > 0) task_panels = std::clamp<int64_t>(form.rows / engine.width, 1, all_rows);
    col_panels = panels_of_task(form, col_panels, std::min(all_cols, kColPanels));
    row_tasks = ceil_div(all_rows, task_panels);
    col_tasks = ceil_div(all_cols, col_panels);
  }
};

void reduce_in_parts(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                     int64_t K, const Matrix& dy, const Matrix& x, float* dw, bool accumulate,
                     const ProductForm& form) {
  if (ctx.meta()) return;
  const bool own_rows = groups.own_rows;
  const int64_t width = engine.width, bytes = element_bytes(engine);
  const int64_t part_tokens = PartsSize::kPanelBytes / (width * bytes);
  const PartsSize size(engine, groups.count, N, K, ctx.threads->size(), form);
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
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t t = tokens * i / parts, next = tokens * (i + 1) / parts, num_k = next - t;
      const int64_t panel_bytes = num_k * width * bytes;
      const Write write = accumulate || i > 0 ? Write::kAdd : Write::kSet;
      pack_left(engine, from_x.at(t, 0), num_k, cols, num_k, right);
      for (int64_t row = first_row; row < last_row; row += block) {
        const int64_t rows = std::min(block, last_row - row);
        pack_left(engine, from_dy.at(t, row), num_k, rows, num_k, left);
        Fetches fetches;  // of the rows to be packed next
        if (row + block < last_row)
          fetches.soon = region_of_rows(from_dy.at(t, row + block), block);
        else if (i + 1 < parts)
          fetches = {region_of_rows(from_x.at(next, 0), cols),
                     region_of_rows(from_dy.at(next, first_row), block)};
        for (int64_t r = 0; r < rows; r += width)
          run_block(engine, num_k, {left + r / width * panel_bytes, bytes, width * bytes}, right,
                    panel_bytes, c.row_range(row + r, row + std::min(r + width, rows)), write,
                    fetches);
      }
    }
  });
}

}  // namespace

void reduce(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N, int64_t K,
            const Matrix& dy, const Matrix& x, float* dw, bool accumulate,
            const ProductForm& form) {
  if (engine.strip) return reduce_strips(ctx, engine, groups, N, K, dy, x, dw, accumulate, form);
  if (engine.k_block != kWholeDepth)
    return reduce_in_parts(ctx, engine, groups, N, K, dy, x, dw, accumulate, form);
  const bool own_rows = groups.own_rows;
  const Arena::Scope scope(*ctx.workspace);
  const TokenPanels right = take_panels(ctx, engine, groups, x.rows, K);
  if (ctx.meta()) return;
  const int32_t all_rows[2] = {0, int32_t(dy.rows)};
  const std::span<const int32_t> row_of_group =
      own_rows ? groups.row_of_group : std::span<const int32_t>(all_rows);
  pack_tokens(ctx, engine, groups, row_of_group, x, right);

  const ReduceSize size(engine, groups.count, N, K, ctx.threads->size(), form);
  const int64_t bytes = element_bytes(engine), pair_bytes = engine.unit * bytes;
  ASHLAR_ASSERT(size.row_panels * engine.width * ReduceSize::kChunk * bytes <=
                ReduceSize::kLeftBytes);
  ctx.threads->run(groups.count * size.row_blocks * size.col_blocks, [&](int64_t task, int) {
    const int64_t first = task % size.col_blocks * size.col_panels,
                  row = task / size.col_blocks % size.row_blocks * size.row_panels * engine.width;
    const int64_t g = task / size.col_blocks / size.row_blocks, column_group = own_rows ? 0 : g;
    const int64_t begin = row_of_group[own_rows ? size_t(g) : 0],
                  end = row_of_group[own_rows ? size_t(g) + 1 : 1];
    const int64_t rows = std::min(size.row_panels * engine.width, N - row),
                  col = first * engine.width,
                  cols = std::min(size.col_panels * engine.width, K - col);
    const Matrix part{reinterpret_cast<std::byte*>(dw + (g * N + row) * K + col), DType::kF32, rows,
                      cols, K};
    if (begin == end && !accumulate) zero_block(part);
    const std::byte* panels = right.data +
                              (column_group * right.group_panels + first) * right.panel_bytes +
                              token_offset(engine, groups, g) * engine.width * bytes;
    const Source source = Source{dy.data, dy.dtype, dy.stride}.at(0, column_group * N + row);
    Fetches none;
    alignas(64) std::byte left[ReduceSize::kLeftBytes];
    for (int64_t t = begin; t < end; t += ReduceSize::kChunk) {
      const int64_t tokens = std::min(ReduceSize::kChunk, end - t), depth = engine.padded(tokens);
      pack_left(engine, source.at(t, 0), tokens, rows, depth, left);
      // Where one chunk is all, dw is written once and not read soon.
      const Write write = accumulate || t > begin ? Write::kAdd
                          : t + tokens < end      ? Write::kSet
                                                  : Write::kStream;
      for (int64_t r = 0; r < rows; r += engine.width) {
        const Left a{left + r * depth * bytes, pair_bytes, pair_bytes * engine.width};
        run_block(engine, depth, a, panels + (t - begin) * engine.width * bytes, right.panel_bytes,
                  part.row_range(r, std::min(r + engine.width, rows)), write, none);
      }
    }
  });
}

}  // namespace ashlar::kernels::cpu::gemm
