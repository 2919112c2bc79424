// How it works.  run_block makes a block of c [up to 16 tiles high, any number of panels wide]:
//
//   for each panel of B      `width` columns; all tiles of the block read it, one after the other
//     for each tile          `max_rows` rows of A and of c; its sums stay in registers over all k,
//                            so that c is touched once
//
// Meanwhile, data that is read later is fetched.  Rows of c are apart from each other, so
// `prefetch` fetches the next tile of c before the current one runs, unless the tile does so itself
// (fetches_c).  All other data is a Region: a tile fetches a line, or a part of one, at each of its
// steps over k, and so one column of the region.  Fetches assigns the columns, `soon` before
// `later`.
//
// If a tile cannot write to c in place (fewer columns than a panel; bf16, unless tile_to stores
// it), it writes to a buffer, and store_tile copies the columns that c has.
#include "ashlar/kernels/cpu/gemm/blocks.h"

#include <array>
#include <cstring>

#include "ashlar/core/error.h"

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kMaxTileFloats = 32 * 32;  // AMX has the largest tiles

// c [rows, cols] of any type from a tile of floats.
void store_tile(const Engine& engine, const float* tile, int64_t rows, int64_t cols,
                const Matrix& c) {
  // An engine of bf16 packs rows by rounding them: here into c itself.
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
  for (int64_t r = 0; r < rows; ++r, c += row_bytes)
    for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(c + at, 1);
}

// First rows of the tiles of a block, and their end.  With whole_tiles all but the last are full;
// else they are equally high, give or take a row.
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
  return engine.tile_to && c.dtype == DType::kF32 && uintptr_t(c.data) % kLine == 0 &&
         c.stride * size_of(c.dtype) % kLine == 0;
}

}  // namespace

Region region_of(const std::byte* data, int64_t bytes, int64_t num_k, int64_t num_tiles) {
  constexpr int64_t kLeastStep = kLine / 4;
  const int64_t step = std::clamp(ceil_div(bytes, num_k * num_tiles), kLeastStep, kLine);
  return {data, step, num_k * step, ceil_div(bytes, num_k * step)};
}

Region region_of_rows(const Source& rows, int64_t num_cols) {
  const int64_t size = size_of(rows.dtype);
  return {rows.data, rows.stride * size, kLine, ceil_div(num_cols * size, kLine)};
}

Panel Fetches::with(const std::byte* panel) {
  Panel result(panel);
  Region& from = soon.columns > 0 ? soon : later;
  if (from.columns == 0) return result;
  result.ahead = from.data;
  result.ahead_step = from.step;
  from.data += from.column_bytes;
  --from.columns;
  return result;
}

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

// Rows are few enough for run_block: kTiles is below kMaxTiles.
TaskSize task_size(const Engine& engine, int64_t K, int64_t N) {
  constexpr int64_t kPanelBytes = 256 << 10, kMultiplyAdds = 8 << 20, kTiles = 8;
  const int64_t panels =
      std::clamp<int64_t>(kPanelBytes / engine.panel_bytes(K), 1, engine.num_panels(N));
  const int64_t rows = kMultiplyAdds / (panels * engine.width * std::max<int64_t>(K, 1));
  return {std::clamp(rows, 2 * engine.max_rows, kTiles * engine.max_rows) / engine.max_rows *
              engine.max_rows,
          panels};
}

// Threads take the tasks in rounds: the last round is full, or one of at least five.
bool keeps_busy(int64_t tasks, int64_t threads) {
  return tasks % threads == 0 || tasks >= 4 * threads;
}

}  // namespace ashlar::kernels::cpu::gemm
