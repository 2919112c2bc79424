// How it works.  A task has rows of c and some panels.  For each panel it expands a part of K to
// the engine's type, into memory that stays in the first caches, and runs the engine's tiles over
// it; at the end sums are scaled and stored.  Few rows read the bytes themselves: those of one tile
// where the engine has tile_int8, and one or two on AMX (amx_rows.h).
#include "ashlar/kernels/cpu/gemm/int8.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/kernels/cpu/gemm/amx_rows.h"
#include "ashlar/kernels/cpu/gemm/blocks.h"

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kMostWidth = 32, kPartElements = 8192, kRowsOfTask = 256;
constexpr int64_t kBytesAhead = 4096;  // the hardware stops foreseeing at the end of every page

// The depth of a part of a panel: whole steps of the engine's loops.
int64_t part_depth(const Engine& engine) {
  ASHLAR_ASSERT(engine.width <= kMostWidth);
  return kPartElements / engine.width / engine.k_pad * engine.k_pad;
}

// To nearest, ties to even, for |x| < 2^22.
float to_integer(float x) {
  constexpr float kMagic = 12582912.0f;
  return (x + kMagic) - kMagic;
}

// A panel of `cols` rows of w.
void pack_int8_panel(const Engine& engine, const float* w, int64_t cols, int64_t K, int8_t* panel,
                     float* scales) {
  alignas(64) float rows[kPartElements];
  alignas(64) std::byte packed[kPartElements * sizeof(float)];
  const int64_t depth = part_depth(engine);
  for (int64_t c = 0; c < cols; ++c) {
    float most = 0;
    for (int64_t k = 0; k < K; ++k) most = std::max(most, std::abs(w[c * K + k]));
    scales[c] = most / 127.0f;
  }
  for (int64_t k = 0; k < K; k += depth) {
    const int64_t num_k = std::min(depth, K - k);
    for (int64_t c = 0; c < cols; ++c) {
      const float inverse = scales[c] > 0 ? 1.0f / scales[c] : 0.0f;
      for (int64_t i = 0; i < num_k; ++i)
        rows[c * depth + i] = std::clamp(to_integer(w[c * K + k + i] * inverse), -127.0f, 127.0f);
    }
    engine.pack_panel_transposed({reinterpret_cast<const std::byte*>(rows), DType::kF32, depth},
                                 num_k, cols, false, packed);
    const int64_t count = engine.padded(num_k) * engine.width;
    for (int64_t i = 0; i < count; ++i)
      panel[k * engine.width + i] =
          int8_t(engine.element == DType::kBF16 ? float(reinterpret_cast<const bf16*>(packed)[i])
                                                : reinterpret_cast<const float*>(packed)[i]);
  }
}

// c [rows, cols] (+)= scales * sums, whose rows are `width` floats.
void store_scaled(const float* sums, int64_t width, const float* scales, const Matrix& c,
                  bool accumulate) {
  const auto store = [&]<typename T>(T*) {
    for (int64_t r = 0; r < c.rows; ++r) {
      T* row = reinterpret_cast<T*>(c.data) + r * c.stride;
      for (int64_t j = 0; j < c.cols; ++j) {
        const float value = sums[r * width + j] * scales[j];
        row[j] = T(accumulate ? float(row[j]) + value : value);
      }
    }
  };
  c.dtype == DType::kBF16 ? store(static_cast<bf16*>(nullptr))
                          : store(static_cast<float*>(nullptr));
}

// c = left times one panel.
void run_int8_panel(const Engine& engine, int64_t padded_k, const Left& left, const int8_t* panel,
                    const float* scales, const Matrix& c, bool accumulate) {
  alignas(64) float sums[kRowsOfTask * kMostWidth];
  alignas(64) std::byte expanded[kPartElements * sizeof(float)];
  const int64_t width = engine.width, depth = part_depth(engine), size = element_bytes(engine);
#if defined(__x86_64__)
  if (c.rows <= vector_rows(engine)) {
    amx_rows_tile_int8(c.rows, padded_k, left, panel, sums, width);
    return store_scaled(sums, width, scales, c, accumulate);
  }
#endif
  // Converting in the tile costs less than expanding in memory; several tiles would each convert.
  const bool direct = engine.tile_int8 && c.rows <= engine.max_rows;
  for (int64_t k = 0; k < padded_k; k += depth) {
    const int64_t num_k = std::min(depth, padded_k - k);
    const Left rows{left.data + k * size, left.row_bytes, left.step_bytes};
    if (direct) {
      Panel part(reinterpret_cast<const std::byte*>(panel + k * width));
      part.ahead += kBytesAhead;
      part.ahead_step = width;
      engine.tile_int8(c.rows, num_k, rows, part, sums, width, k > 0);
      continue;
    }
    expand_int8(panel + k * width, num_k * width, engine.element, expanded);
    for (int64_t row = 0; row < c.rows; row += engine.max_rows)
      engine.tile(std::min(engine.max_rows, c.rows - row), num_k,
                  {rows.data + row * rows.row_bytes, rows.row_bytes, rows.step_bytes}, expanded,
                  sums + row * width, width, k > 0);
  }
  store_scaled(sums, width, scales, c, accumulate);
}

}  // namespace

Int8Form::Int8Form(const Engine& engine, int64_t num_groups, int64_t N, int64_t K)
    : panel_size(engine.padded(K) * engine.width),
      group_size(engine.num_panels(N) * panel_size),
      scales_at(round_up(num_groups * group_size, kLine)),
      bytes(scales_at + num_groups * N * int64_t(sizeof(float))) {}

void pack_int8(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t N, int64_t K,
               const Tensor& w, std::byte* to) {
  const Int8Form form(engine, num_groups, N, K);
  const int64_t num_panels = engine.num_panels(N);
  auto* panels = reinterpret_cast<int8_t*>(to);
  auto* scales = reinterpret_cast<float*>(to + form.scales_at);
  ctx.threads->run(num_groups * num_panels, [&](int64_t i, int) {
    const int64_t g = i / num_panels, col = i % num_panels * engine.width;
    pack_int8_panel(engine, w.as<float>() + (g * N + col) * K, std::min(engine.width, N - col), K,
                    panels + i * form.panel_size, scales + g * N + col);
  });
}

void multiply_int8(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                   int64_t K, const Matrix& a, const std::byte* weights, const Matrix& c,
                   bool accumulate) {
  const Arena::Scope scope(*ctx.workspace);
  const int64_t column_groups = groups.own_rows ? 1 : groups.count;
  const Rows rows = take_rows(ctx, engine, column_groups, K, a);
  if (ctx.meta()) return;
  const int32_t all_rows[2] = {0, int32_t(a.rows)};
  const RowBlocks blocks(groups.own_rows ? groups.row_of_group : std::span<const int32_t>(all_rows),
                         kRowsOfTask / engine.max_rows * engine.max_rows, false);
  constexpr int64_t kTaskBytes = 32 << 10;
  const Int8Form form(engine, groups.count, N, K);
  const int64_t num_panels = engine.num_panels(N),
                panels_a_task = std::clamp<int64_t>(kTaskBytes / form.panel_size, 1, num_panels),
                tasks = ceil_div(num_panels, panels_a_task);
  ctx.threads->run(blocks.count() * column_groups * tasks, [&](int64_t index, int) {
    const RowBlocks::Block block = blocks[index / tasks / column_groups];
    const int64_t column_group = index / tasks % column_groups,
                  first = index % tasks * panels_a_task;
    const int64_t g = groups.own_rows ? block.group : column_group;
    const Left left{rows.data + block.begin * rows.row_bytes + column_group * rows.group_bytes,
                    rows.row_bytes, engine.unit * element_bytes(engine)};
    if (engine.enter) engine.enter();
    for (int64_t i = first; i < std::min(first + panels_a_task, num_panels); ++i) {
      const int64_t col = i * engine.width, end = std::min(col + engine.width, N);
      run_int8_panel(engine, engine.padded(K), left, form.panel(weights, g, i),
                     form.scales(weights) + g * N + col,
                     c.row_range(block.begin, block.end)
                         .columns(column_group * N + col, column_group * N + end),
                     accumulate);
    }
    if (engine.leave) engine.leave();
  });
}

}  // namespace ashlar::kernels::cpu::gemm
