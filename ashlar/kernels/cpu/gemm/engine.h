// The inner loops of packed products, one Engine per instruction set and compute precision.
//
//   C [M, N] (+)= A [M, K] B [K, N]
//
// B is packed into panels of `width` columns.  A panel holds K in groups of `unit` neighbours
// (bf16: pairs, as the dot-product instructions read them): element (k, c) stands at ((k / unit) *
// width + c) * unit + k % unit. K is padded with zeros to a multiple of k_pad, and missing columns
// are zeros, so the loops have no tails. A is read in place where its rows fit (see rows_fit), from
// rows copied by pack_rows, or, where the product reduces over tokens (A = dy^T), from panels of
// its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels::cpu::gemm {

// Elements F32 or BF16 in rows `stride` elements apart.
struct Source {
  const std::byte* data;
  DType dtype;
  int64_t stride;
  Source at(int64_t row, int64_t col) const {
    return {data + (row * stride + col) * size_of(dtype), dtype, stride};
  }
};

// A as a tile reads it: bytes between rows and between groups of `unit` neighbours along K.
struct Left {
  const std::byte* data;
  int64_t row_bytes, step_bytes;
};

// A panel, or its part from some k on, and what to bring near meanwhile: a line at every step of k.
struct Panel {
  Panel(const std::byte* panel) : data(panel), ahead(panel) {}
  const std::byte *data, *ahead;
  int64_t ahead_step = 0;
};

// Rows that are read soon.
struct Ahead {
  const std::byte* data = nullptr;
  int64_t row_bytes = 0, stride = 0, rows = 0;  // stride: bytes from row to row
};

// Work that is done in small pieces between the steps of a strip.
struct Beside {
  void (*run)(const void* state, int64_t piece) = nullptr;
  const void* state = nullptr;
  int64_t pieces = 0;
};

// A strip of c: at most max_rows rows of A times panels that follow each other panel_bytes apart.
struct Strip {
  int64_t padded_k;
  Left a;
  const std::byte* panels;
  int64_t panel_bytes;
  Matrix c;                      // F32 or BF16
  const float* start = nullptr;  // what the products are added to; null: zeros
  int64_t start_stride = 0;
  Ahead ahead[2] = {};  // brought near meanwhile, one after the other
  Beside beside = {};   // done meanwhile, all of it
  bool stream = false;  // c is not read soon: past the caches; the engine's `leave` ends it
};

// Where tile_to leaves its sums.
enum class Store {
  kStream,  // F32 rows, 64-byte aligned, past the caches (not read soon); `settle` ends it
  kBf16,    // BF16 rows
};

inline constexpr int64_t kWholeDepth = int64_t{1} << 40;  // k_block: sums are not cut

struct Engine {
  DType element;        // of packed operands: BF16 or F32
  DType panel_element;  // of panels: the same, or BF16 beside rows of F32
  bool round;  // F32 elements are rounded to bf16 before use (no bf16 dot product on this machine)
  int64_t width;     // columns of a panel
  int64_t max_rows;  // of one tile
  bool whole_tiles;  // lower tiles cost as much as full ones: cut rows at multiples of max_rows
  int64_t unit;      // neighbours along K that stand together in a panel
  int64_t k_pad;     // K is padded to a multiple
  int64_t k_block;   // long sums are cut into even parts of at most this many k, added in order

  // panel(k, c) = source[k][c] for k < num_k, c < num_cols; the rest, up to padded(num_k) and
  // width, is zero.  Null over panels of halves, which are packed transposed alone.
  void (*pack_panel)(const Source&, int64_t num_k, int64_t num_cols, bool round, std::byte* panel);
  // The same for all panels that the columns fill, panel_bytes apart.  Null where strip is.
  void (*pack_panels)(const Source&, int64_t num_k, int64_t num_cols, std::byte* panels,
                      int64_t panel_bytes);
  // panel(k, c) = source[c][k].
  void (*pack_panel_transposed)(const Source&, int64_t num_k, int64_t num_cols, bool round,
                                std::byte* panel);
  // `width` rows of F32 [.., num_cols], num_cols a multiple of `width`, at once: the panel of their
  // transpose (pack_panel_transposed) and, for each `width` columns, their depth in the panel of
  // these (pack_panel), those `stride` bytes apart.  The stores bypass the caches.  Null: not on
  // this engine.
  void (*pack_both)(const Source&, int64_t num_cols, std::byte* transposed, std::byte* plain,
                    int64_t stride);
  // to[r][k] = source[r][k] in rows of row_bytes, padded with zeros to padded(num_k).
  void (*pack_rows)(const Source&, int64_t num_rows, int64_t num_k, bool round, std::byte* to,
                    int64_t row_bytes);
  // Left operand of a reduction over tokens: `width` columns of source become rows.  Null: the left
  // operand is a panel of pack_panel.
  void (*pack_rows_transposed)(const Source&, int64_t num_k, int64_t num_cols, std::byte* to,
                               int64_t row_bytes);
  // to[r][c] = factor * source[r][c] for num_cols <= width; to has rows of `width` floats.
  void (*scale_rows)(const Source&, int64_t num_rows, int64_t num_cols, float factor, float* to);
  // Around the tiles of one task, on its thread; may be null.
  void (*enter)();
  void (*leave)();
  // rows <= max_rows, padded_k a multiple of k_pad: c [rows, width] in rows of c_stride floats.
  void (*tile)(int64_t rows, int64_t padded_k, const Left& a, const Panel& panel, float* c,
               int64_t c_stride, bool accumulate);
  // The same over a panel of bytes (int8.h).  Null: not on this engine; bytes are expanded first.
  void (*tile_int8)(int64_t rows, int64_t padded_k, const Left& a, const Panel& panel, float* c,
                    int64_t c_stride, bool accumulate);

  // All tiles of a strip.  Null: not on this engine; c is made tile by tile.
  void (*strip)(const Strip&);
  // tile without accumulate, straight to its place: c in rows of c_bytes.  Null: not on this
  // engine.
  void (*tile_to)(Store store, int64_t rows, int64_t padded_k, const Left& a, const Panel& panel,
                  std::byte* c, int64_t c_bytes);
  void (*settle)();  // makes streamed tiles of this thread visible to others; null with tile_to
  bool fetches_c;    // tile itself brings the lines of c near

  int64_t padded(int64_t k) const { return round_up(k, k_pad); }
  int64_t num_panels(int64_t columns) const { return ceil_div(columns, width); }
  int64_t panel_bytes(int64_t k) const { return width * padded(k) * size_of(panel_element); }
};

// The cut of a sum over K into parts.
struct Parts {
  int64_t padded_k, count;
  Parts(const Engine& engine, int64_t K)
      : padded_k(engine.padded(K)),
        count(std::max<int64_t>(1, ceil_div(padded_k, engine.k_block))) {}
  int64_t begin(int64_t part) const { return padded_k * part / count; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
};

// The next row of c, hidden from the compiler, which would else compute the addresses of all rows
// before the loop over K and keep them where there is no room.
template <typename T>
[[gnu::always_inline]] inline T* next_row(T* row, int64_t stride) {
  row += stride;
  __asm__("" : "+r"(row));
  return row;
}

// Null where the plain reference serves: fp64, or the reference asked for.
const Engine* engine_for(const Context& ctx, DType compute);

// The engine that packs panels of this element type.
const Engine& packing_engine(const Context& ctx, DType element);

// The engine that reads panels of this type where the given one multiplies.
const Engine& engine_of_panels(const Engine& engine, DType panel);

const Engine& f32_engine(bool round);  // any isa()
const Engine& f32_engine_of_halves();  // the rounding one over panels of BF16
const Engine& bf16_engine();           // AVX-512 BF16
const Engine& amx_engine();

}  // namespace ashlar::kernels::cpu::gemm
