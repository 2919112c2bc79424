#include "ashlar/core/error.h"
#include "ashlar/kernels/cpu/gemm/amx_rows.h"
#include "ashlar/kernels/cpu/gemm/blocks.h"
#include "ashlar/kernels/cpu/gemm/strips.h"

namespace ashlar::kernels::cpu::gemm {
namespace {

bool rows_fit(const Engine& engine, const Matrix& a, int64_t K) {
  // Rows a multiple of a page apart fall into few sets of the first-level cache.
  constexpr int64_t kPage = 4096;
  return a.dtype == engine.element && !engine.round && K % engine.k_pad == 0 &&
         a.stride * element_bytes(engine) % kPage != 0;
}

int64_t copied_row_bytes(const Engine& engine, int64_t num_groups, int64_t K) {
  constexpr int64_t kPage = 4096;
  const int64_t bytes = round_up(num_groups * engine.padded(K) * element_bytes(engine), kLine);
  return bytes % kPage == 0 ? bytes + kLine : bytes;
}

}  // namespace

bool copies_rows(const ProductForm& form, const Engine& engine, const Matrix& a, int64_t K,
                 bool rule) {
  const bool readable = a.dtype == engine.element && !engine.round && K % engine.k_pad == 0;
  if (!readable) return true;
  return form.copies == RowCopies::kByRule ? rule : form.copies == RowCopies::kAlways;
}

Rows take_rows(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t K,
               const Matrix& a) {
  const int64_t size = element_bytes(engine);
  if (rows_fit(engine, a, K)) return {a.data, a.stride * size, K * size};
  const int64_t group_bytes = engine.padded(K) * size,
                row_bytes = copied_row_bytes(engine, num_groups, K);
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

namespace {

// Panels of one task where a product is summed in parts, for `others` tasks each: as many as fit
// beside rows and sums in a second-level cache, fewer where threads would wait: the last round of
// tasks is full, or one of at least 17.
int64_t even_panels(int64_t num_panels, int64_t others, int64_t threads) {
  constexpr int64_t kMostPanels = 24;
  int64_t cuts = ceil_div(num_panels, kMostPanels);
  while (cuts < num_panels && cuts * others % threads != 0 && cuts * others < 16 * threads) ++cuts;
  return ceil_div(num_panels, cuts);
}

// Rows of `a` that a task copies, a part of K at a time.
constexpr int64_t kCopyRowBytes = 1024 + 64, kCopyBytes = 224 * kCopyRowBytes;

// The arguments of multiply.
struct Product {
  const Context& ctx;
  const Engine& engine;
  const Groups& groups;
  int64_t N, K;
  const Matrix& a;
  const std::byte* panels;
  const Matrix& c;
  bool accumulate;
  int64_t column_groups() const { return groups.own_rows ? 1 : groups.count; }
};

// One task of a product: rows of a and c, and panels, of one group.
struct Task {
  int64_t column_group;
  RowBlocks::Block rows;
  const std::byte* panels;
  Matrix c;
};
Task task_of(const Product& p, const RowBlocks::Block& rows, int64_t column_group, int64_t first,
             int64_t num_panels) {
  const int64_t width = p.engine.width, group = p.groups.own_rows ? rows.group : column_group;
  const int64_t col = first * width, end = std::min(col + num_panels * width, p.N);
  return {column_group, rows,
          p.panels + (group * p.engine.num_panels(p.N) + first) * p.engine.panel_bytes(p.K),
          p.c.row_range(rows.begin, rows.end)
              .columns(column_group * p.N + col, column_group * p.N + end)};
}

// Every sum in one go, K as long as it is.
void multiply_whole(const Product& p, const RowBlocks& blocks, const TaskSize& size,
                    const Rows& rows) {
  const Engine& engine = p.engine;
  const int64_t panel_blocks = ceil_div(engine.num_panels(p.N), size.panels);
  p.ctx.threads->run(blocks.count() * panel_blocks * p.column_groups(), [&](int64_t index, int) {
    const Task task = task_of(p, blocks[index / panel_blocks / p.column_groups()],
                              index / panel_blocks % p.column_groups(),
                              index % panel_blocks * size.panels, size.panels);
    const Left left{
        rows.data + task.rows.begin * rows.row_bytes + task.column_group * rows.group_bytes,
        rows.row_bytes, engine.unit * element_bytes(engine)};
    Fetches none;
    run_block(engine, engine.padded(p.K), left, task.panels, engine.panel_bytes(p.K), task.c,
              p.accumulate ? Write::kAdd : Write::kSet, none);
  });
}

// Part after part of K: rows copied where they do not fit, the next panel and the next rows fetched
// meanwhile.
void run_parts(const Product& p, const Task& task, bool copies) {
  const Engine& engine = p.engine;
  const Parts parts(engine, p.K);
  const int64_t width = engine.width, bytes = element_bytes(engine),
                step_bytes = width * size_of(engine.panel_element);
  const int64_t num_panels = engine.num_panels(task.c.cols),
                num_tiles = ceil_div(task.c.rows, engine.max_rows);
  const Source rows =
      Source{p.a.data, p.a.dtype, p.a.stride}.at(task.rows.begin, task.column_group * p.K);
  // Where the next task starts, which this thread is likely to take.
  const Source next_rows = p.column_groups() > 1 ? rows.at(0, p.K) : rows.at(task.c.rows, 0);
  const auto panel = [&](int64_t i, int64_t part) {
    return task.panels + i * engine.panel_bytes(p.K) + parts.begin(part) * step_bytes;
  };
  alignas(64) std::byte copy[kCopyBytes];
  for (int64_t part = 0; part < parts.count; ++part) {
    const int64_t k = parts.begin(part), num_k = parts.size(part);
    Left left{rows.at(0, k).data, rows.stride * bytes, bytes};
    if (copies) {
      ASHLAR_ASSERT(task.c.rows * kCopyRowBytes <= kCopyBytes && num_k * bytes <= kCopyRowBytes);
      engine.pack_rows(rows.at(0, k), task.c.rows, num_k, engine.round, copy, kCopyRowBytes);
      left = {copy, kCopyRowBytes, bytes};
    }
    const bool last = part + 1 == parts.count;
    Fetches fetches;
    // A tile fetches a line of one row at each of its steps over k: of short blocks, mostly of rows
    // behind the next one's.
    if (task.c.rows * 2 >= num_k)
      fetches.later = last ? region_of_rows(next_rows, parts.size(0))
                           : region_of_rows(rows.at(0, k + num_k), parts.size(part + 1));
    for (int64_t i = 0; i < num_panels; ++i) {
      fetches.soon = region_of(i + 1 < num_panels ? panel(i + 1, part) : panel(0, part + 1),
                               num_k * step_bytes, num_k, num_tiles);
      run_block(engine, num_k, left, panel(i, part), 0,
                task.c.columns(i * width, std::min((i + 1) * width, task.c.cols)),
                p.accumulate || part > 0 ? Write::kAdd : Write::kSet, fetches);
    }
  }
}

void multiply_in_parts(const Product& p, std::span<const int32_t> row_of_group,
                       const ProductForm& form) {
  const Engine& engine = p.engine;
  const int64_t most_rows = kMaxTiles * engine.max_rows;
  const bool copies = copies_rows(form, engine, p.a, p.K, !rows_fit(engine, p.a, p.K));
  const RowBlocks blocks(row_of_group, rows_of_task(form, engine, most_rows, most_rows));
  const int64_t groups = p.column_groups(), all_panels = engine.num_panels(p.N);
  const int64_t num_panels = panels_of_task(
      form, even_panels(all_panels, blocks.count() * groups, p.ctx.threads->size()), all_panels);
  const int64_t panel_blocks = ceil_div(all_panels, num_panels), others = panel_blocks * groups;
  // The larger operand passes through the caches once: weights of one group, or rows.
  const bool weights_once = rows_go_first(form, p.groups.count == 1 && p.N > p.a.rows);
  p.ctx.threads->run(blocks.count() * others, [&](int64_t index, int) {
    const int64_t other = weights_once ? index / blocks.count() : index % others;
    const auto rows = blocks[weights_once ? index % blocks.count() : index / others];
    run_parts(p,
              task_of(p, rows, other / panel_blocks, other % panel_blocks * num_panels, num_panels),
              copies);
  });
}

}  // namespace

void multiply(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N, int64_t K,
              const Matrix& a, const std::byte* panels, const Matrix& c, bool accumulate,
              const ProductForm& form) {
  const bool few =
      a.rows <= (groups.own_rows && groups.count > 1 ? engine.max_rows : vector_rows(engine));
  if (engine.strip && !few) {
    // The copies of few rows, so that a count for many rows also holds for fewer.
    const Arena::Scope scope(*ctx.workspace);
    if (!rows_fit(engine, a, K))
      ctx.workspace->take(DType::kU8,
                          {std::min(a.rows, engine.max_rows),
                           copied_row_bytes(engine, groups.own_rows ? 1 : groups.count, K)});
    return multiply_strips(ctx, engine, groups, N, K, a, panels, c, accumulate, form);
  }
  const Product product{ctx, engine, groups, N, K, a, panels, c, accumulate};
  const int32_t all_rows[2] = {0, int32_t(a.rows)};
  const auto row_of_group =
      groups.own_rows ? groups.row_of_group : std::span<const int32_t>(all_rows);
  if (engine.k_block != kWholeDepth && c.dtype == DType::kF32) {
    if (!ctx.meta()) multiply_in_parts(product, row_of_group, form);
    return;
  }
  const Arena::Scope scope(*ctx.workspace);
  const Rows rows = take_rows(ctx, engine, product.column_groups(), K, a);
  if (ctx.meta()) return;
  TaskSize size = task_size(engine, K, N);
  // Rows of one tile meet every panel once: the time of a task is that of reading its panels.
  constexpr int64_t kFewRowsBytes = 32 << 10;
  if (a.rows <= engine.max_rows)
    size.panels = std::clamp<int64_t>(kFewRowsBytes / engine.panel_bytes(K), 1, size.panels);
  size.rows = rows_of_task(form, engine, size.rows, kMaxTiles * engine.max_rows);
  size.panels = panels_of_task(form, size.panels, engine.num_panels(N));
  multiply_whole(product, RowBlocks(row_of_group, size.rows, !engine.whole_tiles), size, rows);
}

}  // namespace ashlar::kernels::cpu::gemm
