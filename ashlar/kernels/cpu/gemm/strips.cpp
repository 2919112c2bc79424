// Whole products from strips (Engine::strip).
//
// How it works.  A strip is 32 rows of c.  Its rows of A stay in the first-level cache, and the
// task's panels in the second.
//
//   multiply_strips   a task is a block of rows and of panels
//     for each part of K               more would fill the first-level cache
//       for each strip of the rows     rows copied where they do not fit (rows_fit)
//   reduce_strips     a task is a block of dw; per block of its rows
//     for each part of the tokens      x packed for all columns of the task
//       for each strip of the rows     dy^T packed beside the strip before (Beside)
//
// Sums of the parts are added in order in c, or, where c is bf16, in floats on the stack of the
// task, a few rows at a time.  Cuts that change sums depend on K and on the tokens of a group only.
#include "ashlar/kernels/cpu/gemm/strips.h"

#include <cstring>

#include "ashlar/core/error.h"
#include "ashlar/kernels/cpu/gemm/blocks.h"

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kPageBytes = 4096;

// Even parts of a sum, whole multiples of k_pad.
struct Depths {
  int64_t pad, padded, count;
  Depths(const Engine& engine, int64_t k, int64_t most)
      : pad(engine.k_pad),
        padded(engine.padded(k)),
        count(std::max<int64_t>(1, ceil_div(padded, most))) {}
  int64_t begin(int64_t part) const { return padded / pad * part / count * pad; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
};

struct Size {
  // K that is summed in one go, and parts of a longer one.
  static constexpr int64_t kDepth = 1024, kPartDepth = 704;
  static constexpr int64_t kRows = 256, kPartRows = 512, kSumRows = 256, kSumPanels = 16;
  static constexpr int64_t kMostRows = 1 << 20;
  static constexpr int64_t kFewParts = 6;
  static constexpr int64_t kPanelsBytes = 1 << 20;  // of one part of a task
};

// `panels` of num_panels, as many as a task may have, fewer where threads would wait.
int64_t even_panels_of_task(int64_t num_panels, int64_t most, int64_t others, int64_t threads) {
  int64_t cuts = ceil_div(num_panels, std::max<int64_t>(1, most));
  while (cuts < num_panels && !keeps_busy(cuts * others, threads)) ++cuts;
  return ceil_div(num_panels, cuts);
}

// The arguments of a product, and the cut of its sums.
struct Multiplication {
  const Engine& engine;
  int64_t N, K;
  const Matrix& a;
  const std::byte* panels;
  const Matrix& c;
  bool accumulate;
  const ProductForm& form;
  Depths depths;

  Multiplication(const Engine& e, int64_t n, int64_t k, const Matrix& from, const std::byte* b,
                 const Matrix& to, bool adds, const ProductForm& f)
      : engine(e),
        N(n),
        K(k),
        a(from),
        panels(b),
        c(to),
        accumulate(adds),
        form(f),
        depths(e, k, e.padded(k) <= Size::kDepth ? Size::kDepth : Size::kPartDepth) {}

  bool has_sums() const { return c.dtype == DType::kBF16 && (accumulate || depths.count > 1); }
  // Rows that are summed at a time.  Strip by strip, sums stay in the second-level cache and all
  // panels pass; of long sums, a part of the panels stays there instead.
  int64_t sum_rows() const {
    return depths.count > Size::kFewParts ? Size::kSumRows : engine.max_rows;
  }
  // Rows of A that tiles do not read in place: of another type, or in few sets of the first-level
  // cache.
  bool copies() const {
    const int64_t row_bytes = a.stride * size_of(engine.element);
    const bool few_sets =
        row_bytes % kPageBytes == 0 || (depths.count > 1 && row_bytes % (kPageBytes / 2) == 0);
    return copies_rows(form, engine, a, K, few_sets);
  }
};

// A block of c, of one group.
struct MultiplyTask {
  const Multiplication& m;
  RowBlocks::Block rows;
  int64_t column_group, group, first, num_panels;

  Matrix block() const {
    const int64_t width = m.engine.width, col = first * width;
    return m.c.row_range(rows.begin, rows.end)
        .columns(column_group * m.N + col,
                 column_group * m.N + std::min(col + num_panels * width, m.N));
  }
  Source source() const {
    return Source{m.a.data, m.a.dtype, m.a.stride}.at(rows.begin, column_group * m.K);
  }
  const std::byte* panel(int64_t k) const {
    return m.panels + (group * m.engine.num_panels(m.N) + first) * m.engine.panel_bytes(m.K) +
           k * m.engine.width * size_of(m.engine.element);
  }
};

void widen(const Matrix& from, const Matrix& to) {
  for (int64_t r = 0; r < from.rows; ++r)
    for (int64_t j = 0; j < from.cols; ++j)
      reinterpret_cast<float*>(to.data)[r * to.stride + j] =
          float(reinterpret_cast<const bf16*>(from.data)[r * from.stride + j]);
}

// Rows [first, last) of a task, part after part of K.
void run_rows(const MultiplyTask& task, int64_t first, int64_t last) {
  const Multiplication& m = task.m;
  const Engine& engine = m.engine;
  const int64_t height = engine.max_rows, size = size_of(m.a.dtype);
  const Matrix block = task.block(), c = block.row_range(first, last);
  alignas(64) float sums[Size::kSumRows * Size::kSumPanels * 32];
  alignas(64) std::byte copy[32 * (Size::kDepth * 2 + kLine)];
  const Matrix between = m.has_sums() ? Matrix{reinterpret_cast<std::byte*>(sums), DType::kF32,
                                               c.rows, c.cols, task.num_panels * engine.width}
                                      : c;
  if (m.has_sums() && m.accumulate) widen(c, between);
  const Source rows = task.source().at(first, 0);
  const bool copies = m.copies();
  for (int64_t part = 0; part < m.depths.count; ++part) {
    const int64_t k = m.depths.begin(part), depth = m.depths.size(part),
                  num_k = std::min(depth, m.K - k);
    const bool adds = m.accumulate || part > 0, is_last = part + 1 == m.depths.count;
    for (int64_t row = 0; row < c.rows; row += height) {
      const int64_t end = std::min(row + height, c.rows);
      Strip strip{.padded_k = depth,
                  .a = {rows.at(row, k).data, rows.stride * size, 0},
                  .panels = task.panel(k),
                  .panel_bytes = engine.panel_bytes(m.K),
                  .c = (is_last ? c : between).row_range(row, end)};
      if (copies) {
        strip.a = {copy, depth * 2 + kLine, 0};
        engine.pack_rows(rows.at(row, k), end - row, num_k, false, copy, strip.a.row_bytes);
      }
      if (adds) {
        strip.start = reinterpret_cast<const float*>(between.row_range(row, end).data);
        strip.start_stride = between.stride;
      }
      // The rows that are read next: below, of the next part, or below all of these.
      const auto ahead = [&](int64_t next_row, int64_t next_k, int64_t count) {
        strip.ahead[0] = {rows.at(next_row, next_k).data, std::min(depth, m.K - next_k) * size,
                          rows.stride * size, std::min(count, height)};
      };
      if (end < c.rows)
        ahead(end, k, c.rows - end);
      else if (!is_last)
        ahead(0, k + depth, c.rows);
      else if (last < block.rows)
        ahead(end, 0, block.rows - last);
      engine.strip(strip);
    }
  }
}

// Where c is bf16, sums of a few rows lie on the stack.
void run_task(const MultiplyTask& task) {
  const int64_t rows = task.rows.end - task.rows.begin,
                step = task.m.has_sums() ? task.m.sum_rows() : rows;
  for (int64_t row = 0; row < rows; row += step) run_rows(task, row, std::min(row + step, rows));
}

// The cut of a block of dw.
struct ReduceCut {
  static constexpr int64_t kTokens = 512, kColPanels = 24, kBlockBytes = 4096 << 10,
                           kPanelsBytes = 768 << 10;
  // Tokens whose panels of `cols` columns lie in the second-level cache.
  static int64_t part_tokens(int64_t cols) {
    return std::min(kTokens, kPanelsBytes / (round_up(cols, 32) * 2) / 32 * 32);
  }
  int64_t task_panels, row_tasks, col_panels, col_tasks;
  // Rows whose sums stay in the second-level cache from part to part.
  static int64_t block_rows(const Engine& engine, int64_t cols) {
    return std::max(engine.max_rows, kBlockBytes / (cols * 4) / engine.max_rows * engine.max_rows);
  }
  // Tasks as large as keep all threads busy to the end, or as the form says; bits do not depend on
  // them, since no task has more columns than part_tokens allows for.
  ReduceCut(const Engine& engine, int64_t groups, int64_t N, int64_t K, int64_t threads,
            const ProductForm& form)
      : task_panels(engine.num_panels(N)) {
    const int64_t all = engine.num_panels(K);
    col_panels = ceil_div(all, ceil_div(all, kColPanels));
    for (;;) {
      row_tasks = ceil_div(engine.num_panels(N), task_panels);
      col_tasks = ceil_div(all, col_panels);
      if (keeps_busy(groups * row_tasks * col_tasks, threads) || task_panels * col_panels == 1)
        break;
      int64_t& larger = task_panels >= col_panels ? task_panels : col_panels;
      larger = ceil_div(larger, 2);
    }
    task_panels =
        rows_of_task(form, engine, task_panels * engine.width, round_up(N, engine.width)) /
        engine.width;
    col_panels = panels_of_task(form, col_panels, std::min(all, kColPanels));
    row_tasks = ceil_div(engine.num_panels(N), task_panels);
    col_tasks = ceil_div(all, col_panels);
  }
};

// One task of a reduction: a block of dw.
struct Reduction {
  const Engine& engine;
  Source dy, x;
  int64_t tokens;
  Matrix dw;
  bool accumulate;

  static constexpr int64_t kSide = 32;  // tokens that are packed at a time
  static constexpr int64_t kLeftRowBytes = ReduceCut::kTokens * 2 + kLine,
                           kLeftBytes = kSide * kLeftRowBytes;
  // Whether sums that go on come from beyond the second-level cache.
  bool reads_far() const {
    constexpr int64_t kNearBytes = 1 << 20;
    return accumulate || dw.rows * dw.cols * 4 > kNearBytes;
  }
  void run() const;
};

// The strips of a task in their order: per block of rows, per part of the tokens, down the rows.
struct StripWalk {
  const Reduction* r;
  Depths parts;
  int64_t block;  // rows
  int64_t first = 0, part = 0, row = 0;

  StripWalk(const Reduction& reduction)
      : r(&reduction),
        parts(r->engine, r->tokens, ReduceCut::part_tokens(r->dw.cols)),
        block(parts.count == 1 ? r->dw.rows : ReduceCut::block_rows(r->engine, r->dw.cols)) {}
  bool ended() const { return first >= r->dw.rows; }
  int64_t end_of_block() const { return std::min(first + block, r->dw.rows); }
  int64_t rows() const { return std::min(r->engine.max_rows, end_of_block() - row); }
  int64_t token() const { return parts.begin(part); }
  int64_t num_tokens() const { return std::min(parts.size(part), r->tokens - token()); }
  Source source() const { return r->dy.at(token(), row); }
  void next() {
    row += r->engine.max_rows;
    if (row < end_of_block()) return;
    if (++part == parts.count) part = 0, first += block;
    row = first;
  }
};

// dy^T of a strip, 32 tokens a piece.
struct LeftPacking {
  StripWalk strip;
  std::byte* to;
  int64_t pieces() const {
    return strip.ended() ? 0 : ceil_div(strip.num_tokens(), Reduction::kSide);
  }
  void pack(int64_t piece) const {
    const int64_t t = piece * Reduction::kSide;
    strip.r->engine.pack_rows_transposed(strip.source().at(t, 0),
                                         std::min(Reduction::kSide, strip.num_tokens() - t),
                                         strip.rows(), to + t * 2, Reduction::kLeftRowBytes);
  }
  static void run(const void* packing, int64_t piece) {
    static_cast<const LeftPacking*>(packing)->pack(piece);
  }
};

void Reduction::run() const {
  alignas(64) std::byte panels[ReduceCut::kPanelsBytes];
  alignas(64) std::byte left[2][kLeftBytes];
  StripWalk now(*this);
  const LeftPacking first{now, left[0]};
  for (int64_t i = 0; i < first.pieces(); ++i) first.pack(i);
  int64_t count = 0;
  for (StripWalk next = now; !now.ended(); now = next, ++count) {
    if (now.row == now.first && (count == 0 || now.parts.count > 1)) {
      const int64_t depth = now.parts.size(now.part);
      engine.pack_panels(x.at(now.token(), 0), now.num_tokens(), dw.cols, panels, depth * kLine);
    }
    next.next();
    const LeftPacking beside{next, left[(count + 1) % 2]};
    const int64_t depth = now.parts.size(now.part);
    Strip strip{.padded_k = depth,
                .a = {left[count % 2], kLeftRowBytes, 0},
                .panels = panels,
                .panel_bytes = depth * kLine,
                .c = dw.row_range(now.row, now.row + now.rows()),
                .beside = {&LeftPacking::run, &beside, beside.pieces()},
                .stream = now.parts.count == 1 && !accumulate};
    if (accumulate || now.part > 0) {
      strip.start = reinterpret_cast<const float*>(strip.c.data);
      strip.start_stride = dw.stride;
    }
    StripWalk later = next;
    if (!next.ended()) later.next();
    if (!later.ended())
      strip.ahead[0] = {later.source().data, later.rows() * size_of(dy.dtype),
                        dy.stride * size_of(dy.dtype), later.num_tokens()};
    if (strip.start && next.row > now.row && reads_far())
      strip.ahead[1] = {strip.c.data + strip.c.rows * dw.stride * 4, dw.cols * 4, dw.stride * 4,
                        next.rows()};
    engine.strip(strip);
  }
}

}  // namespace

void multiply_strips(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                     int64_t K, const Matrix& a, const std::byte* panels, const Matrix& c,
                     bool accumulate, const ProductForm& form) {
  if (ctx.meta()) return;
  const Multiplication m(engine, N, K, a, panels, c, accumulate, form);
  const int32_t all_rows[2] = {0, int32_t(a.rows)};
  const int64_t rule = m.depths.count > 1 ? Size::kPartRows : Size::kRows;
  const RowBlocks blocks(groups.own_rows ? groups.row_of_group : std::span<const int32_t>(all_rows),
                         rows_of_task(form, engine, rule, Size::kMostRows), false);
  const int64_t column_groups = groups.own_rows ? 1 : groups.count;
  const int64_t all_panels = engine.num_panels(N);
  // Panels of one part, or of all, pass a strip before the next strip reads them.
  const int64_t parts = m.has_sums() ? 1 : m.depths.count;
  int64_t most =
      std::max<int64_t>(4, Size::kPanelsBytes / (ceil_div(engine.padded(K), parts) * kLine));
  if (m.has_sums()) most = std::min(most, Size::kSumPanels);
  const int64_t num_panels = panels_of_task(
      form, even_panels_of_task(all_panels, most, blocks.count(), ctx.threads->size()),
      m.has_sums() ? std::min(all_panels, Size::kSumPanels) : all_panels);
  const int64_t panel_blocks = ceil_div(all_panels, num_panels);
  // Tasks that follow each other read the same panels, or, where groups own rows, the same rows.
  const bool rows_first = rows_go_first(form, groups.own_rows && groups.count == 1);
  ctx.threads->run(blocks.count() * panel_blocks, [&](int64_t index, int) {
    const auto rows = blocks[rows_first ? index % blocks.count() : index / panel_blocks];
    const int64_t block = rows_first ? index / blocks.count() : index % panel_blocks,
                  first = block * num_panels;
    if (first >= all_panels) return;
    engine.enter();
    for (int64_t g = 0; g < column_groups; ++g)
      run_task({m, rows, g, groups.own_rows ? rows.group : g, first,
                std::min(num_panels, all_panels - first)});
    engine.leave();
  });
}

void reduce_strips(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                   int64_t K, const Matrix& dy, const Matrix& x, float* dw, bool accumulate,
                   const ProductForm& form) {
  if (ctx.meta()) return;
  const bool own_rows = groups.own_rows;
  const ReduceCut cut(engine, groups.count, N, K, ctx.threads->size(), form);
  ctx.threads->run(groups.count * cut.row_tasks * cut.col_tasks, [&](int64_t task, int) {
    const int64_t g = task / cut.col_tasks / cut.row_tasks, column_group = own_rows ? 0 : g;
    const int64_t row = task / cut.col_tasks % cut.row_tasks * cut.task_panels * engine.width,
                  col = task % cut.col_tasks * cut.col_panels * engine.width;
    const int64_t rows = std::min(cut.task_panels * engine.width, N - row),
                  cols = std::min(cut.col_panels * engine.width, K - col);
    if (rows <= 0 || cols <= 0) return;
    const int64_t begin = own_rows ? groups.row_of_group[size_t(g)] : 0,
                  end = own_rows ? groups.row_of_group[size_t(g) + 1] : x.rows;
    const Matrix block{reinterpret_cast<std::byte*>(dw + (g * N + row) * K + col), DType::kF32,
                       rows, cols, K};
    if (begin == end) {
      if (!accumulate) zero_block(block);
      return;
    }
    engine.enter();
    Reduction{engine,
              Source{dy.data, dy.dtype, dy.stride}.at(begin, column_group * N + row),
              Source{x.data, x.dtype, x.stride}.at(begin, column_group * K + col),
              end - begin,
              block,
              accumulate}
        .run();
    engine.leave();
  });
}

}  // namespace ashlar::kernels::cpu::gemm
