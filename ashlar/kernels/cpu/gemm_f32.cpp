// fp32 products, compiled for every instruction set that Highway knows.  They also serve bf16
// products where the machine has no bf16 dot product: operands rounded to bf16 and kept as fp32
// give the same products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/gemm_f32.cpp"
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/kernels/cpu/dispatch.h"
#include "ashlar/kernels/cpu/gemm.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::gemm::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4, kWidth = 2 * kLanes;
// Sums, two columns of B and a broadcast fill the 32 or 16 registers.
constexpr int kMaxRows = HWY_MAX_BYTES == 64 ? 14 : 6;

// To the nearest bf16, ties to even; NaN stays NaN.
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

void pack_panel(const Source& source, int64_t num_k, int64_t num_cols, bool round,
                std::byte* panel) {
  auto* to = reinterpret_cast<float*>(panel);
  for (int64_t k = 0; k < num_k; ++k, to += kWidth) {
    const Source row = source.at(k, 0);
    hn::StoreU(load(row.data, row.dtype, num_cols, round), D(), to);
    hn::StoreU(load(row.at(0, kLanes).data, row.dtype, num_cols - kLanes, round), D(), to + kLanes);
  }
}

// Through a square block that stays in the first cache: rows are read whole, the block is written
// by columns.
void pack_panel_transposed(const Source& source, int64_t num_k, int64_t num_cols, bool round,
                           std::byte* panel) {
  auto* to = reinterpret_cast<float*>(panel);
  for (int64_t k = 0; k < num_k; k += kLanes) {
    const int64_t count = std::min(kLanes, num_k - k);
    alignas(64) float block[kWidth][kLanes];
    for (int64_t c = 0; c < kWidth; ++c)
      hn::Store(load(source.at(c, k).data, source.dtype, c < num_cols ? count : 0, round), D(),
                block[c]);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < kWidth; ++c) to[(k + i) * kWidth + c] = block[c][i];
  }
}

void pack_rows(const Source& source, int64_t num_rows, int64_t num_k, bool round, std::byte* to,
               int64_t row_bytes) {
  for (int64_t r = 0; r < num_rows; ++r) {
    std::byte* row = to + r * row_bytes;
    for (int64_t k = 0; k < num_k; k += kLanes) {
      const int64_t count = std::min(kLanes, num_k - k);
      alignas(64) float lanes[kLanes];
      hn::Store(load(source.at(r, k).data, source.dtype, count, round), D(), lanes);
      std::memcpy(row + k * 4, lanes, size_t(count) * 4);
    }
  }
}

void scale_rows(const Source& source, int64_t num_rows, int64_t num_cols, float factor, float* to) {
  const V scale = hn::Set(D(), factor);
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t c = 0; c < kWidth; c += kLanes, to += kLanes) {
      const int64_t count = std::min(kLanes, num_cols - c);
      hn::StoreU(hn::Mul(load(source.at(r, c).data, source.dtype, count, false), scale), D(), to);
    }
}

template <bool kRound, int kRows>
void tile_of(int64_t num_k, const Left& a, const std::byte* panel, float* c, int64_t c_stride,
             bool accumulate) {
  constexpr int kBases = (kRows + 2) / 3;
  const D d;
  V sum[kRows][2];
  if (accumulate) {
    const float* row = c;
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r, row = next_row(row, c_stride)) {
      sum[r][0] = hn::LoadU(d, row);
      sum[r][1] = hn::LoadU(d, row + kLanes);
    }
  } else {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  }
  const std::byte* base[kBases];
#pragma GCC unroll 5
  for (int i = 0; i < kBases; ++i) base[i] = a.data + 3 * i * a.row_bytes;
  const int64_t row_bytes = a.row_bytes, step_bytes = a.step_bytes;
  const auto* b = reinterpret_cast<const float*>(panel);
  for (int64_t k = 0; k < num_k; ++k, b += kWidth) {
    V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLanes);
    if constexpr (kRound) {
      b0 = rounded(b0);
      b1 = rounded(b1);
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
    hn::StoreU(sum[r][0], d, c);
    hn::StoreU(sum[r][1], d, c + kLanes);
  }
}

template <bool kRound, size_t... kRows>
constexpr auto tiles_of(std::index_sequence<kRows...>) {
  return std::array{&tile_of<kRound, int(kRows) + 1>...};
}

template <bool kRound>
void tile(int64_t rows, int64_t num_k, const Left& a, const std::byte* panel, float* c,
          int64_t c_stride, bool accumulate) {
  static constexpr auto kTiles = tiles_of<kRound>(std::make_index_sequence<kMaxRows>());
  kTiles[size_t(rows - 1)](num_k, a, panel, c, c_stride, accumulate);
}

}  // namespace

template <bool kRound>
constexpr Engine kEngine = {
    .element = DType::kF32,
    .round = kRound,
    .width = kWidth,
    .max_rows = kMaxRows,
    .whole_tiles = false,
    .unit = 1,
    .k_pad = 1,
    .pack_panel = pack_panel,
    .pack_panel_transposed = pack_panel_transposed,
    .pack_both = nullptr,
    .pack_rows = pack_rows,
    .pack_rows_transposed = nullptr,
    .scale_rows = scale_rows,
    .enter = nullptr,
    .leave = nullptr,
    .tile = tile<kRound>,
    .tile_to = nullptr,
    .settle = nullptr,
    .fetches_c = false,
};

const Engine& engine(bool round) {
  return round ? kEngine<true> : kEngine<false>;
}

}  // namespace ashlar::kernels::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::gemm {
HWY_EXPORT(engine);
const Engine& f32_engine(bool round) {
  return dispatch(HWY_DISPATCH_TABLE(engine))(round);
}
}  // namespace ashlar::kernels::gemm
#endif
