// bf16 products with AMX: one instruction makes 16 x 16 sums over 32 neighbours of K, in two by two
// tiles.
//
// How it works.  A tile of the engine, 32 x 32, uses all eight tile registers:
//
//                      6: B, columns 0-15    7: B, columns 16-31
//   4: A, rows 0-15    0: sums               1: sums                a step of 32 k: four loads,
//   5: A, rows 16-31   2: sums               3: sums                four multiplications
//
// Left operands are rows (of tokens, or transposed if the product reduces over tokens): unlike
// vdpbf16ps, a tile cannot read them from a panel.  K is padded with zeros to 32 on both sides, so
// that no tile reads past its operand.
//
// One or two rows go to vectors (amx_rows.h).  enter, called before the tiles of a task, configures
// the registers for full tiles; a tile with fewer rows configures them for itself, and restores
// them.
#include <immintrin.h>

#include <algorithm>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/gemm/amx_rows.h"
#include "ashlar/kernels/cpu/gemm/amx_tiles.h"
#include "ashlar/kernels/cpu/gemm/bf16.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kStep = 32, kHalf = 16, kPairBytes = 4, kPanelRowBytes = kBf16Width * kPairBytes;
constexpr int64_t kPanelStepBytes = kStep / 2 * kPanelRowBytes;

int64_t padded(int64_t k) {
  return round_up(k, kStep);
}

// Shapes the registers for `upper` and `lower` rows of A and sums; B has 16 rows of pairs.
[[gnu::target("amx-tile,amx-bf16")]] void configure(int64_t upper, int64_t lower) {
  amx::TileConfig config;
  const int64_t rows[8] = {upper, upper, lower, lower, upper, lower, kHalf, kHalf};
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = uint8_t(rows[i]);
    config.row_bytes[i] = 64;
  }
  amx::load_config(config);
}

void enter() {
  configure(kHalf, kHalf);
}
[[gnu::target("amx-tile,amx-bf16")]] void leave() {
  _mm_sfence();  // strips may have streamed
  amx::release();
}

[[gnu::target("amx-tile,amx-bf16")]] void full_tile(int64_t padded_k, const Left& a,
                                                    const std::byte* panel, float* c,
                                                    int64_t c_stride, bool accumulate) {
  float* const lower_c = c + kHalf * c_stride;
  const int64_t c_bytes = c_stride * 4;
  amx::zero<0>();
  amx::zero<1>();
  amx::zero<2>();
  amx::zero<3>();
  if (accumulate) {
    amx::load<0>(c, c_bytes);
    amx::load<1>(c + kHalf, c_bytes);
    amx::load<2>(lower_c, c_bytes);
    amx::load<3>(lower_c + kHalf, c_bytes);
  }
  const std::byte *upper = a.data, *lower = a.data + kHalf * a.row_bytes;
  for (int64_t k = 0; k < padded_k;
       k += kStep, upper += 64, lower += 64, panel += kPanelStepBytes) {
    amx::load<4>(upper, a.row_bytes);
    amx::load<6>(panel, kPanelRowBytes);
    amx::load<7>(panel + 64, kPanelRowBytes);
    amx::load<5>(lower, a.row_bytes);
    amx::multiply_add<0, 4, 6>();
    amx::multiply_add<1, 4, 7>();
    amx::multiply_add<2, 5, 6>();
    amx::multiply_add<3, 5, 7>();
  }
  amx::store<0>(c, c_bytes);
  amx::store<1>(c + kHalf, c_bytes);
  amx::store<2>(lower_c, c_bytes);
  amx::store<3>(lower_c + kHalf, c_bytes);
}

// Multiplies at most 16 rows, with the upper tiles only.
[[gnu::target("amx-tile,amx-bf16")]] void upper_tile(int64_t padded_k, const Left& a,
                                                     const std::byte* panel, float* c,
                                                     int64_t c_stride, bool accumulate) {
  const int64_t c_bytes = c_stride * 4;
  amx::zero<0>();
  amx::zero<1>();
  if (accumulate) {
    amx::load<0>(c, c_bytes);
    amx::load<1>(c + kHalf, c_bytes);
  }
  const std::byte* upper = a.data;
  for (int64_t k = 0; k < padded_k; k += kStep, upper += 64, panel += kPanelStepBytes) {
    amx::load<4>(upper, a.row_bytes);
    amx::load<6>(panel, kPanelRowBytes);
    amx::load<7>(panel + 64, kPanelRowBytes);
    amx::multiply_add<0, 4, 6>();
    amx::multiply_add<1, 4, 7>();
  }
  amx::store<0>(c, c_bytes);
  amx::store<1>(c + kHalf, c_bytes);
}

void tile(int64_t rows, int64_t padded_k, const Left& a, const Panel& panel, float* c,
          int64_t c_stride, bool accumulate) {
  if (rows <= kMaxVectorRows)
    return amx_rows_tile(rows, padded_k, a, panel.data, c, c_stride, accumulate);
  const bool whole = rows == 2 * kHalf;
  // Up to 16 rows the lower registers are not used; they get one row.
  if (!whole) configure(std::min(rows, kHalf), std::max<int64_t>(rows - kHalf, 1));
  if (rows > kHalf)
    full_tile(padded_k, a, panel.data, c, c_stride, accumulate);
  else
    upper_tile(padded_k, a, panel.data, c, c_stride, accumulate);
  if (!whole) enter();
}

void strip(const Strip& s) {
  const int64_t rows = s.c.rows;
  const bool whole = rows == 2 * kHalf;
  if (!whole) configure(std::min(rows, kHalf), std::max<int64_t>(rows - kHalf, 1));
  amx_strip(s);
  if (!whole) enter();
}

void pack_panel(const Source& source, int64_t num_k, int64_t num_cols, bool, std::byte* panel) {
  pack_bf16_panel(source, num_k, num_cols, padded(num_k), panel);
}

void pack_panels(const Source& source, int64_t num_k, int64_t num_cols, std::byte* panels,
                 int64_t panel_bytes) {
  pack_bf16_panels(source, num_k, num_cols, padded(num_k), panels, panel_bytes);
}

void pack_panel_transposed(const Source& source, int64_t num_k, int64_t num_cols, bool,
                           std::byte* panel) {
  pack_bf16_panel_transposed(source, num_k, num_cols, padded(num_k), panel);
}

void pack_rows(const Source& source, int64_t num_rows, int64_t num_k, bool, std::byte* to,
               int64_t row_bytes) {
  pack_bf16_rows(source, num_rows, num_k, padded(num_k), to, row_bytes);
}

void pack_rows_transposed(const Source& source, int64_t num_k, int64_t num_cols, std::byte* to,
                          int64_t row_bytes) {
  for (int64_t k = 0; k < num_k; k += kStep)
    transpose_bf16_block(source.at(k, 0), std::min(kStep, num_k - k), num_cols, to + k * 2,
                         row_bytes);
}

}  // namespace

const Engine& amx_engine() {
  static constexpr Engine kEngine = {
      .element = DType::kBF16,
      .panel_element = DType::kBF16,
      .round = false,
      .width = kBf16Width,
      .max_rows = 2 * kHalf,
      .whole_tiles = true,
      .unit = 2,
      .k_pad = kStep,
      .k_block = kWholeDepth,
      .pack_panel = pack_panel,
      .pack_panels = pack_panels,
      .pack_panel_transposed = pack_panel_transposed,
      .pack_both = pack_bf16_both,
      .pack_rows = pack_rows,
      .pack_rows_transposed = pack_rows_transposed,
      .scale_rows = scale_rows,
      .enter = enter,
      .leave = leave,
      .tile = tile,
      .tile_int8 = nullptr,
      .strip = strip,
      .tile_to = nullptr,
      .settle = nullptr,
      .fetches_c = false,
  };
  return kEngine;
}

}  // namespace ashlar::kernels::cpu::gemm

#endif
