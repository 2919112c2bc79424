// Strips of products with AMX: up to 32 rows of A times all panels of a block.
//
// How it works.  A tile of sums is 32 x 32, in four registers (amx.cpp).  Going along a strip, the
// rows of A stay in the first-level cache, and panels stream from the second: they are loaded with
// the hint that they are not read soon, so that they do not displace A.  Rows of c grow to the
// right, where the hardware sees one stream a row.
//
// Other work is spread over the steps of k, where the multiplier would else wait for it
// (Meanwhile): the tile before, left in a buffer, is brought to its place (Departure), the rows of
// the next strip are fetched, and pieces of the caller's work are done (Beside).  Fetching lines of
// c before they are written gains nothing.

#include <algorithm>
#include <cstring>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/gemm/amx_tiles.h"
#include "ashlar/kernels/cpu/gemm/bf16.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kDeep = 32, kTall = 16,
                  kTileFloats = 2 * kTall * kBf16Width;  // a step; half a strip
constexpr int64_t kRowBytes = kBf16Width * 4;  // of a panel's pairs, and of a tile's floats
constexpr int64_t kStepBytes = kDeep / 2 * kRowBytes, kCacheLine = 64;

// Lines of rows, brought near one after the other.
struct Lines {
  const Ahead *rows, *end;
  int64_t each;  // lines at a time
  const std::byte *row = nullptr, *at = nullptr;
  int64_t left = 0;  // of the rows
  Lines(const Strip& s, int64_t steps) : rows(s.ahead), end(s.ahead + std::size(s.ahead)) {
    int64_t lines = 0;
    for (const Ahead& a : s.ahead) lines += a.rows * ceil_div(a.row_bytes, kCacheLine);
    each = ceil_div(lines, std::max<int64_t>(1, steps));
    start();
  }
  void start() {
    while (rows < end && rows->rows == 0) ++rows;
    if (rows < end) at = row = rows->data, left = rows->rows;
  }
  ASHLAR_TILES_INLINE void fetch() {
    for (int64_t i = 0; i < each && left > 0; ++i) {
      _mm_prefetch(at, _MM_HINT_T1);
      at += kCacheLine;
      if (at < row + rows->row_bytes) continue;
      at = row += rows->stride;
      if (--left == 0) ++rows, start();
    }
  }
};

// How sums leave their tile.
enum class Leave { kInPlace, kRounded, kStreamed };

// Rows of a tile of floats, to be brought to their places: as bf16, or past the caches.
template <Leave kLeave>
struct Departure {
  const float* from = nullptr;
  std::byte* to = nullptr;
  int64_t stride = 0, rows = 0;
  ASHLAR_TILES_INLINE void one(const float* row, std::byte* place) const {
    const __m512 low = _mm512_load_ps(row), high = _mm512_load_ps(row + kTall);
    if constexpr (kLeave == Leave::kRounded) {
      _mm512_storeu_si512(place, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    } else {
      _mm512_stream_ps(reinterpret_cast<float*>(place), low);
      _mm512_stream_ps(reinterpret_cast<float*>(place + kCacheLine), high);
    }
  }
  ASHLAR_TILES_INLINE void two() {
    if (rows < 2) return;
    one(from, to);
    one(from + kBf16Width, to + stride);
    from += 2 * kBf16Width;
    to += 2 * stride;
    rows -= 2;
  }
  ASHLAR_TILES_INLINE void finish() {
    while (rows >= 2) two();
    if (rows) one(from, to);
    rows = 0;
  }
};

// Pieces of other work, evenly over the steps of a strip.
struct Pieces {
  Beside work;
  int64_t steps, sum = 0, next = 0;
  ASHLAR_TILES_INLINE void step() {
    for (sum += work.pieces; sum >= steps; sum -= steps) work.run(work.state, next++);
  }
};

template <Leave kLeave>
struct Meanwhile {
  Departure<kLeave> departure;
  int64_t pairs;  // of rows, at a step
  Lines lines;
  Pieces pieces;
};

// Sums begin at `start`, or with zeros, and end at `to`; both have rows of so many bytes.
struct Sums {
  const float* start;
  int64_t start_bytes;
  float* to;
  int64_t to_bytes;
};

// All rows of A in one register of 16, or in two.
template <bool kTwo, Leave kLeave>
ASHLAR_TILES_INLINE void tile(int64_t padded_k, const Left& a, const std::byte* panel,
                              const Sums& sums, Meanwhile<kLeave>& meanwhile) {
  const int64_t lower = kTall * a.row_bytes;
  if (sums.start) {
    const auto* from = reinterpret_cast<const std::byte*>(sums.start);
    amx::load<0>(from, sums.start_bytes);
    amx::load<1>(from + kCacheLine, sums.start_bytes);
    if (kTwo) amx::load<2>(from + kTall * sums.start_bytes, sums.start_bytes);
    if (kTwo) amx::load<3>(from + kTall * sums.start_bytes + kCacheLine, sums.start_bytes);
  } else {
    amx::zero<0>();
    amx::zero<1>();
    if (kTwo) amx::zero<2>();
    if (kTwo) amx::zero<3>();
  }
  const std::byte* rows = a.data;
  for (int64_t k = 0; k < padded_k; k += kDeep, rows += kDeep * 2, panel += kStepBytes) {
    amx::load<4>(rows, a.row_bytes);
    amx::load_passing<6>(panel, kRowBytes);
    amx::load_passing<7>(panel + kCacheLine, kRowBytes);
    if (kTwo) amx::load<5>(rows + lower, a.row_bytes);
    amx::multiply_add<0, 4, 6>();
    amx::multiply_add<1, 4, 7>();
    if (kTwo) amx::multiply_add<2, 5, 6>();
    if (kTwo) amx::multiply_add<3, 5, 7>();
    if (kLeave != Leave::kInPlace)
      for (int64_t i = 0; i < meanwhile.pairs; ++i) meanwhile.departure.two();
    meanwhile.lines.fetch();
    if (meanwhile.pieces.work.pieces) meanwhile.pieces.step();
  }
  auto* to = reinterpret_cast<std::byte*>(sums.to);
  amx::store<0>(to, sums.to_bytes);
  amx::store<1>(to + kCacheLine, sums.to_bytes);
  if (kTwo) amx::store<2>(to + kTall * sums.to_bytes, sums.to_bytes);
  if (kTwo) amx::store<3>(to + kTall * sums.to_bytes + kCacheLine, sums.to_bytes);
}

// The columns that c has, fewer than a panel: from it, and to it from a tile of floats.
ASHLAR_TILES_INLINE __m512 part(const float* row, uint32_t mask) {
  return _mm512_maskz_loadu_ps(__mmask16(mask), row);
}
ASHLAR_TILES_INLINE void load_columns(const float* c, int64_t stride, float* tile, int64_t rows,
                                      int64_t cols) {
  const uint32_t mask = (1U << cols) - 1;
  for (int64_t r = 0; r < rows; ++r, c += stride, tile += kBf16Width) {
    _mm512_store_ps(tile, part(c, mask));
    _mm512_store_ps(tile + kTall, part(c + kTall, mask >> 16));
  }
}
template <bool kRounds>
ASHLAR_TILES_INLINE void store_columns(const float* tile, std::byte* c, int64_t c_bytes,
                                       int64_t rows, int64_t cols) {
  const uint32_t mask = (1U << cols) - 1;
  for (int64_t r = 0; r < rows; ++r, c += c_bytes, tile += kBf16Width) {
    const __m512 low = _mm512_load_ps(tile), high = _mm512_load_ps(tile + kTall);
    if (kRounds) {
      _mm512_mask_storeu_epi16(c, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    } else {
      _mm512_mask_storeu_ps(c, __mmask16(mask), low);
      _mm512_mask_storeu_ps(c + kCacheLine, __mmask16(mask >> 16), high);
    }
  }
}

template <bool kTwo, Leave kLeave>
ASHLAR_TILES void strip_of(const Strip& s) {
  constexpr bool kRounds = kLeave == Leave::kRounded;
  constexpr int64_t kSize = kRounds ? 2 : 4;
  const int64_t c_bytes = s.c.stride * kSize, steps = s.padded_k / kDeep,
                tiles = ceil_div(s.c.cols, kBf16Width);
  alignas(64) float buffers[2][kTileFloats];
  Meanwhile<kLeave> meanwhile{
      {}, ceil_div(s.c.rows, 2 * steps), Lines(s, steps * tiles), {s.beside, steps * tiles}};
  const std::byte* panel = s.panels;
  for (int64_t i = 0; i < tiles; ++i, panel += s.panel_bytes) {
    const int64_t col = i * kBf16Width, cols = std::min(kBf16Width, s.c.cols - col);
    std::byte* c = s.c.data + col * kSize;
    float* const buffer = buffers[i % 2];
    Sums sums{s.start ? s.start + col : nullptr, s.start_stride * 4, buffer, kRowBytes};
    const bool whole = cols == kBf16Width;
    if (kLeave == Leave::kInPlace && whole) {
      sums.to = reinterpret_cast<float*>(c);
      sums.to_bytes = c_bytes;
    }
    if (sums.start && !whole) {
      load_columns(sums.start, s.start_stride, buffer, s.c.rows, cols);
      sums.start = buffer;
      sums.start_bytes = kRowBytes;
    }
    tile<kTwo>(s.padded_k, s.a, panel, sums, meanwhile);
    meanwhile.departure.finish();
    if (!whole)
      store_columns<kRounds>(buffer, c, c_bytes, s.c.rows, cols);
    else if (kLeave != Leave::kInPlace)
      meanwhile.departure = {buffer, c, c_bytes, s.c.rows};
  }
  meanwhile.departure.finish();
}

}  // namespace

void amx_strip(const Strip& s) {
  const auto leave = [&]<Leave kLeave>() {
    s.c.rows > kTall ? strip_of<true, kLeave>(s) : strip_of<false, kLeave>(s);
  };
  const bool lines = uintptr_t(s.c.data) % kCacheLine == 0 && s.c.stride * 4 % kCacheLine == 0;
  if (s.c.dtype == DType::kBF16)
    leave.operator()<Leave::kRounded>();
  else if (s.stream && lines)
    leave.operator()<Leave::kStreamed>();
  else
    leave.operator()<Leave::kInPlace>();
}

}  // namespace ashlar::kernels::cpu::gemm

#endif
