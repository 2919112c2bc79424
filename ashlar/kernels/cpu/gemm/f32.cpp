// fp32 products, compiled for every instruction set that Highway knows.  They also serve bf16
// products if the machine has no bf16 dot product: operands rounded to bf16 and kept as fp32 give
// the same products.
//
// How it works.  A panel is two vectors wide and has one row for each k.  A tile keeps its sums,
// max_rows x 2 vectors, in registers; at each k it loads a row of the panel, broadcasts one element
// of every row of A, and multiplies and adds.
//
//   vectors of   panel    tile      panel of 256 k
//   64 bytes     32       14 x 32   32 KiB
//   32 bytes     16       6 x 16    16 KiB
//   16 bytes     8        6 x 8     8 KiB
//
// Sums are cut at kDepth to stay in cache: multiply_in_parts and reduce_in_parts work part by part,
// and a tile fetches a line of Panel::ahead at each k meanwhile.
//
// For bf16, A is rounded when it is copied or packed.  Panels of weights serve both engines, and
// are rounded by the tile (AsRoundedFloats).  Weights that are only read forward are kept in half
// the memory (AsHalves): elements c and c + kLanes of a row share the lane c of a vector.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/gemm/f32.cpp"
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/kernels/cpu/gemm/engine.h"
#include "ashlar/kernels/cpu/simd/dispatch.h"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::gemm::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4, kWidth = 2 * kLanes;
// Sums, two columns of B and a broadcast fill the 32 or 16 registers.
constexpr int kMaxRows = HWY_MAX_BYTES == 64 ? 14 : 6;
constexpr int64_t kDepth = 256;  // a panel of this depth stays in the first-level cache

// Rounds to the nearest bf16, ties to even; NaN stays NaN.
HWY_INLINE V rounded(V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto sum = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const V near = hn::BitCast(D(), hn::And(sum, hn::Set(du, 0xffff0000u)));
  return hn::IfThenElse(hn::IsNaN(x), x, near);
}

// `count` neighbours as floats; count <= kLanes.
HWY_INLINE V load_some(const std::byte* at, DType dtype, int64_t count, bool round) {
  alignas(64) float lanes[kLanes] = {};
  if (dtype == DType::kBF16) {
    alignas(64) uint32_t bits[kLanes] = {};
    uint16_t halves[kLanes];
    std::memcpy(halves, at, size_t(count) * 2);
    for (int64_t i = 0; i < count; ++i) bits[i] = uint32_t(halves[i]) << 16;
    return hn::BitCast(D(), hn::Load(hn::RebindToUnsigned<D>(), bits));
  }
  std::memcpy(lanes, at, size_t(count) * 4);
  const V x = hn::Load(D(), lanes);
  return round ? rounded(x) : x;
}

HWY_INLINE V load(const std::byte* at, DType dtype, int64_t count, bool round) {
  if (count < kLanes) return count <= 0 ? hn::Zero(D()) : load_some(at, dtype, count, round);
  if (dtype == DType::kBF16) {
    const hn::Rebind<uint16_t, D> d16;
    const auto wide = hn::PromoteTo(hn::RebindToUnsigned<D>(),
                                    hn::LoadU(d16, reinterpret_cast<const uint16_t*>(at)));
    return hn::BitCast(D(), hn::ShiftLeft<16>(wide));
  }
  const V x = hn::LoadU(D(), reinterpret_cast<const float*>(at));
  return round ? rounded(x) : x;
}

// Rows to fetch ahead: those of the source lie too far apart for the hardware to foresee.
constexpr int64_t kRowsAhead = 16;

void pack_panel(const Source& source, int64_t num_k, int64_t num_cols, bool round,
                std::byte* panel) {
  const D d;
  auto* to = reinterpret_cast<float*>(panel);
  if (source.dtype == DType::kF32 && !round && num_cols == kWidth) {
    const auto* from = reinterpret_cast<const float*>(source.data);
    for (int64_t k = 0; k < num_k; ++k, from += source.stride, to += kWidth) {
      __builtin_prefetch(from + kRowsAhead * source.stride);
      __builtin_prefetch(from + kRowsAhead * source.stride + kWidth - 1);
      const V low = hn::LoadU(d, from), high = hn::LoadU(d, from + kLanes);
      hn::StoreU(low, d, to);
      hn::StoreU(high, d, to + kLanes);
    }
    return;
  }
  for (int64_t k = 0; k < num_k; ++k, to += kWidth) {
    const Source row = source.at(k, 0);
    hn::StoreU(load(row.data, row.dtype, num_cols, round), d, to);
    hn::StoreU(load(row.at(0, kLanes).data, row.dtype, num_cols - kLanes, round), d, to + kLanes);
  }
}

#if HWY_TARGET != HWY_SCALAR
// Four neighbours of each fourth row, one after the other: lanes 4i to 4i + 3 are those of row 4i.
template <class DV>
HWY_INLINE hn::Vec<DV> load_fours(DV d, const float* at, int64_t stride) {
  if constexpr (hn::MaxLanes(DV()) == 4) {
    return hn::LoadU(d, at);
  } else {
    const hn::Half<DV> half;
    return hn::Combine(d, load_fours(half, at + int64_t(hn::Lanes(half)) * stride, stride),
                       load_fours(half, at, stride));
  }
}

// Four neighbours of kLanes rows, `stride` apart, as four columns: loaded so that every 4 x 4 block
// lies in 16 bytes of each vector, within which the interleaving instructions work.
HWY_INLINE void load_transposed(const float* at, int64_t stride, V (&columns)[4]) {
  const D d;
  const hn::RepartitionToWide<D> pairs;
  V rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = load_fours(d, at + i * stride, stride);
  const V low0 = hn::InterleaveLower(d, rows[0], rows[1]),
          high0 = hn::InterleaveUpper(d, rows[0], rows[1]),
          low1 = hn::InterleaveLower(d, rows[2], rows[3]),
          high1 = hn::InterleaveUpper(d, rows[2], rows[3]);
  const auto as_pairs = [&](V v) { return hn::BitCast(pairs, v); };
  columns[0] = hn::BitCast(d, hn::InterleaveLower(pairs, as_pairs(low0), as_pairs(low1)));
  columns[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, as_pairs(low0), as_pairs(low1)));
  columns[2] = hn::BitCast(d, hn::InterleaveLower(pairs, as_pairs(high0), as_pairs(high1)));
  columns[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, as_pairs(high0), as_pairs(high1)));
}
constexpr bool kHasTransposed = true;
#else
void load_transposed(const float*, int64_t, V (&)[4]) {}
constexpr bool kHasTransposed = false;
#endif

// Whole panels of floats by fours; the rest through a square block that stays in the first cache:
// rows are read whole, the block is written by columns.
void pack_panel_transposed(const Source& source, int64_t num_k, int64_t num_cols, bool round,
                           std::byte* panel) {
  auto* to = reinterpret_cast<float*>(panel);
  int64_t k = 0;
  if (kHasTransposed && source.dtype == DType::kF32 && !round && num_cols == kWidth) {
    const auto* from = reinterpret_cast<const float*>(source.data);
    for (; k + 4 <= num_k; k += 4)
      for (int64_t c = 0; c < kWidth; c += kLanes) {
        V columns[4];
        load_transposed(from + c * source.stride + k, source.stride, columns);
        for (int i = 0; i < 4; ++i) hn::StoreU(columns[i], D(), to + (k + i) * kWidth + c);
      }
  }
  for (; k < num_k; k += kLanes) {
    const int64_t count = std::min(kLanes, num_k - k);
    alignas(64) float block[kWidth][kLanes];
    for (int64_t c = 0; c < kWidth; ++c)
      hn::Store(load(source.at(c, k).data, source.dtype, c < num_cols ? count : 0, round), D(),
                block[c]);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < kWidth; ++c) to[(k + i) * kWidth + c] = block[c][i];
  }
}

// The panel for AsHalves, from floats that stay in the first cache.
void pack_halves_transposed(const Source& source, int64_t num_k, int64_t num_cols, bool,
                            std::byte* panel) {
  constexpr int64_t kSteps = 64;
  const hn::RebindToUnsigned<D> du;
  alignas(64) float floats[kSteps * kWidth];
  auto* to = reinterpret_cast<uint32_t*>(panel);
  for (int64_t k = 0; k < num_k; k += kSteps) {
    const int64_t steps = std::min(kSteps, num_k - k);
    pack_panel_transposed(source.at(0, k), steps, num_cols, false,
                          reinterpret_cast<std::byte*>(floats));
    for (const float* row = floats; row < floats + steps * kWidth; row += kWidth, to += kLanes) {
      const auto low = hn::BitCast(du, rounded(hn::Load(D(), row))),
                 high = hn::BitCast(du, rounded(hn::Load(D(), row + kLanes)));
      hn::StoreU(hn::Or(hn::ShiftRight<16>(low), hn::And(high, hn::Set(du, 0xffff0000u))), du, to);
    }
  }
}

// Every line of both forms is written once, whole, and not read soon.
void pack_both(const Source& source, int64_t num_cols, std::byte* transposed, std::byte* plain,
               int64_t stride) {
  const D d;
  constexpr int64_t kAhead = 64;  // columns
  auto* columns_to = reinterpret_cast<float*>(transposed);
  for (int64_t k = 0; k < num_cols; k += kWidth, plain += stride) {
    const float* from = reinterpret_cast<const float*>(source.data) + k;
    auto* rows_to = reinterpret_cast<float*>(plain);
    for (int64_t r = 0; r < kWidth; ++r, rows_to += kWidth) {
      const float* row = from + r * source.stride;
      __builtin_prefetch(row + kAhead);
      __builtin_prefetch(row + kAhead + kWidth - 1);
      hn::Stream(hn::LoadU(d, row), d, rows_to);
      hn::Stream(hn::LoadU(d, row + kLanes), d, rows_to + kLanes);
    }
    for (int64_t i = 0; i < kWidth; i += 4, columns_to += 4 * kWidth)
      for (int64_t c = 0; c < kWidth; c += kLanes) {
        V columns[4];
        load_transposed(from + c * source.stride + i, source.stride, columns);
        for (int j = 0; j < 4; ++j) hn::Stream(columns[j], d, columns_to + j * kWidth + c);
      }
  }
  hwy::FlushStream();
}

void pack_rows(const Source& source, int64_t num_rows, int64_t num_k, bool round, std::byte* to,
               int64_t row_bytes) {
  const D d;
  const bool plain = source.dtype == DType::kF32 && !round;
  const int64_t whole = num_k / kLanes * kLanes;
  for (int64_t r = 0; r < num_rows; ++r, to += row_bytes) {
    const std::byte* from = source.at(r, 0).data;
    auto* row = reinterpret_cast<float*>(to);
    __builtin_prefetch(to + kRowsAhead * row_bytes, 1);
    __builtin_prefetch(to + kRowsAhead * row_bytes + kWidth * 4 - 1, 1);
    if (plain)
      for (int64_t k = 0; k < whole; k += kLanes)
        hn::StoreU(hn::LoadU(d, reinterpret_cast<const float*>(from) + k), d, row + k);
    else
      for (int64_t k = 0; k < whole; k += kLanes)
        hn::StoreU(load(source.at(r, k).data, source.dtype, kLanes, round), d, row + k);
    if (whole == num_k) continue;
    alignas(64) float lanes[kLanes];
    hn::Store(load(source.at(r, whole).data, source.dtype, num_k - whole, round), d, lanes);
    std::memcpy(row + whole, lanes, size_t(num_k - whole) * sizeof(float));
  }
}

void scale_rows(const Source& source, int64_t num_rows, int64_t num_cols, float factor, float* to) {
  const D d;
  const V scale = hn::Set(d, factor);
  if (source.dtype == DType::kF32 && num_cols == kWidth) {
    const auto* from = reinterpret_cast<const float*>(source.data);
    for (int64_t r = 0; r < num_rows; ++r, from += source.stride, to += kWidth) {
      __builtin_prefetch(from + kRowsAhead * source.stride);
      __builtin_prefetch(from + kRowsAhead * source.stride + kWidth - 1);
      const V low = hn::LoadU(d, from), high = hn::LoadU(d, from + kLanes);
      hn::StoreU(hn::Mul(low, scale), d, to);
      hn::StoreU(hn::Mul(high, scale), d, to + kLanes);
    }
    return;
  }
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t c = 0; c < kWidth; c += kLanes, to += kLanes) {
      const V x = load(source.at(r, c).data, source.dtype, num_cols - c, false);
      hn::StoreU(hn::Mul(x, scale), d, to);
    }
}

// Forms of a panel's row: how its two vectors are read.
struct AsFloats {
  using Element = float;
  HWY_INLINE static std::pair<V, V> load(const float* row) {
    return {hn::LoadU(D(), row), hn::LoadU(D(), row + kLanes)};
  }
};
struct AsRoundedFloats {
  using Element = float;
  HWY_INLINE static std::pair<V, V> load(const float* row) {
    return {rounded(hn::LoadU(D(), row)), rounded(hn::LoadU(D(), row + kLanes))};
  }
};
struct AsHalves {
  using Element = bf16;
  HWY_INLINE static std::pair<V, V> load(const bf16* row) {
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t*>(row));
    return {hn::BitCast(D(), hn::ShiftLeft<16>(both)),
            hn::BitCast(D(), hn::And(both, hn::Set(du, 0xffff0000u)))};
  }
};
struct AsIntegers {  // of 8 bits (int8.h)
  using Element = int8_t;
  HWY_INLINE static V floats(const int8_t* at) {
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(D(), hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, D>(), at)));
  }
  HWY_INLINE static std::pair<V, V> load(const int8_t* row) {
    return {floats(row), floats(row + kLanes)};
  }
};

// Rows are reached from one base per three of them: an address of x86 may add one or two strides at
// no cost.  Lines of c are fetched one row a step, and c is added at the end: fetched all at once
// they would fill the queue of misses and hold up the operands.
template <typename Form, bool kAdd, int kRows>
void tile_of(int64_t num_k, const Left& a, const Panel& panel, float* c, int64_t c_stride) {
  constexpr int kBases = (kRows + 2) / 3;
  const D d;
  V sum[kRows][2];
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  const std::byte* base[kBases];
#pragma GCC unroll 5
  for (int i = 0; i < kBases; ++i) base[i] = a.data + 3 * i * a.row_bytes;
  const int64_t row_bytes = a.row_bytes, step_bytes = a.step_bytes;
  const std::byte* ahead = panel.ahead;
  const int64_t ahead_step = panel.ahead_step;
  const float* row_of_c = c;
  int fetches = kRows;
  const auto* b = reinterpret_cast<const typename Form::Element*>(panel.data);
  for (int64_t k = 0; k < num_k; ++k, b += kWidth) {
    const auto [b0, b1] = Form::load(b);
    __builtin_prefetch(ahead, 0, 2);  // for reading, into the second-level cache
    ahead += ahead_step;
    if (fetches > 0) {
      __builtin_prefetch(row_of_c, 1);
      __builtin_prefetch(row_of_c + kWidth - 1, 1);
      row_of_c += c_stride;
      --fetches;
    }
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(d, *reinterpret_cast<const float*>(base[r / 3] + r % 3 * row_bytes));
      sum[r][0] = hn::MulAdd(x, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(x, b1, sum[r][1]);
    }
#pragma GCC unroll 5
    for (int i = 0; i < kBases; ++i) base[i] += step_bytes;
  }
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r, c = next_row(c, c_stride)) {
    if constexpr (kAdd) {
      sum[r][0] = hn::Add(sum[r][0], hn::LoadU(d, c));
      sum[r][1] = hn::Add(sum[r][1], hn::LoadU(d, c + kLanes));
    }
    hn::StoreU(sum[r][0], d, c);
    hn::StoreU(sum[r][1], d, c + kLanes);
  }
}

// A tile for each number of rows, so that its sums are registers.
template <typename Form, bool kAdd, size_t... kRows>
constexpr auto tiles_of(std::index_sequence<kRows...>) {
  return std::array{&tile_of<Form, kAdd, int(kRows) + 1>...};
}
template <typename Form, bool kAdd>
constexpr auto kTiles = tiles_of<Form, kAdd>(std::make_index_sequence<kMaxRows>());

template <typename Form>
void tile(int64_t rows, int64_t num_k, const Left& a, const Panel& panel, float* c,
          int64_t c_stride, bool accumulate) {
  const auto& tiles = accumulate ? kTiles<Form, true> : kTiles<Form, false>;
  tiles[size_t(rows - 1)](num_k, a, panel, c, c_stride);
}

constexpr Engine kExact = {
    .element = DType::kF32,
    .panel_element = DType::kF32,
    .round = false,
    .width = kWidth,
    .max_rows = kMaxRows,
    .whole_tiles = false,
    .unit = 1,
    .k_pad = 1,
    .k_block = kDepth,
    .pack_panel = pack_panel,
    .pack_panels = nullptr,
    .pack_panel_transposed = pack_panel_transposed,
    .pack_both = kHasTransposed ? pack_both : nullptr,
    .pack_rows = pack_rows,
    .pack_rows_transposed = nullptr,
    .scale_rows = scale_rows,
    .enter = nullptr,
    .leave = nullptr,
    .tile = tile<AsFloats>,
    .tile_int8 = tile<AsIntegers>,
    .strip = nullptr,
    .tile_to = nullptr,
    .settle = nullptr,
    .fetches_c = true,
};

constexpr Engine kRounding = [] {
  Engine engine = kExact;
  engine.round = true;
  engine.tile = tile<AsRoundedFloats>;
  return engine;
}();

constexpr Engine kOfHalves = [] {
  Engine engine = kRounding;
  engine.panel_element = DType::kBF16;
  engine.pack_panel = nullptr;
  engine.pack_panel_transposed = pack_halves_transposed;
  engine.pack_both = nullptr;
  engine.tile = tile<AsHalves>;
  return engine;
}();

}  // namespace

const Engine& engine(bool round) {
  return round ? kRounding : kExact;
}
const Engine& engine_of_halves() {
  return kOfHalves;
}

}  // namespace ashlar::kernels::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu::gemm {
HWY_EXPORT(engine);
HWY_EXPORT(engine_of_halves);
const Engine& f32_engine(bool round) {
  return dispatch(HWY_DISPATCH_TABLE(engine))(round);
}
const Engine& f32_engine_of_halves() {
  return dispatch(HWY_DISPATCH_TABLE(engine_of_halves))();
}
}  // namespace ashlar::kernels::cpu::gemm
#endif
