// Attention on tiles (AMX): what forward and backward share.
//
// Both cut scores into units of 32 by 32, two tiles each way, which take all eight tile registers:
// four hold sums, two a step of the left operand, two a step of the right one.  All tiles are full:
// operands are packed with zeros up to 32 rows and columns.
//
// Vector units other than those of the tiles work at half rate while tiles are in flight: of the
// two ports, one alone then multiplies.  Additions, bitwise operations and shuffles keep the other
// one busy, which decides between equal forms below.
#pragma once

#include <algorithm>
#include <climits>

#include "ashlar/kernels/cpu/attention/blocks.h"
#include "ashlar/kernels/cpu/gemm/amx_tiles.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kStrip = 32;  // rows and columns of a unit
inline constexpr int64_t kHalfStrip = 16;
// A panel: 16 pairs of rows, 32 columns.
inline constexpr int64_t kPairRowBytes = 128, kPanelBytes = 16 * kPairRowBytes;

// The rows of k that each of 32 queries sees; begin == end: none.
struct Strip {
  int32_t begin[kStrip], end[kStrip];
  int32_t lowest, highest;       // no query sees keys outside of [lowest, highest)
  int32_t full_begin, full_end;  // every query sees all of [full_begin, full_end)
  bool sees_all(int64_t key) const { return key >= full_begin && key + kStrip <= full_end; }
};

// The strip from row `first` of a block on; rows outside [row_begin, row_end) see nothing.
inline void fill_strip(const BlockRanges& ranges, int64_t first, int64_t row_begin, int64_t row_end,
                       Strip& strip) {
  strip.lowest = strip.full_end = INT_MAX;
  strip.highest = strip.full_begin = 0;
  for (int64_t r = 0; r < kStrip; ++r) {
    const int64_t row = first + r;
    const bool ours = row >= row_begin && row < row_end;
    const int32_t begin = ours ? ranges.begin[row] : 0, end = ours ? ranges.end[row] : 0;
    strip.begin[r] = begin;
    strip.end[r] = end;
    strip.full_begin = std::max(strip.full_begin, begin);
    strip.full_end = std::min(strip.full_end, end);
    if (begin == end) continue;
    strip.lowest = std::min(strip.lowest, begin);
    strip.highest = std::max(strip.highest, end);
  }
}

inline uint32_t first_bits(int32_t n) {
  return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1;
}

// The sums of a unit, in the tile registers.  A store would wait for the last product of its tile,
// so sums stay in place until the next unit needs the registers: its first products overlap the
// stores.
class UnitSums {
 public:
  // Starts a unit with the products of a first depth of 32, upon the sums `from`, rows of
  // `row_floats` (null: upon zeros); those of the unit before go to where they belong.
  ASHLAR_TILES_INLINE void start(const std::byte* left, int64_t row_bytes, const std::byte* panel,
                                 const float* from, int64_t row_floats) {
    amx::load<4>(left, row_bytes);
    amx::load<6>(panel, kPairRowBytes);
    turn<0>(from, row_floats);
    amx::multiply_add<0, 4, 6>();
    amx::load<7>(panel + 64, kPairRowBytes);
    turn<1>(from, row_floats);
    amx::multiply_add<1, 4, 7>();
    amx::load<5>(left + kHalfStrip * row_bytes, row_bytes);
    turn<2>(from, row_floats);
    amx::multiply_add<2, 5, 6>();
    turn<3>(from, row_floats);
    amx::multiply_add<3, 5, 7>();
    to_ = nullptr;
  }
  // The same for other products, which follow.
  ASHLAR_TILES_INLINE void turn_all(const float* from, int64_t row_floats) {
    turn<0>(from, row_floats);
    turn<1>(from, row_floats);
    turn<2>(from, row_floats);
    turn<3>(from, row_floats);
    to_ = nullptr;
  }
  // Ends the unit, whose sums belong at `to`.
  ASHLAR_TILES_INLINE void leave(float* to, int64_t row_floats) {
    to_ = to;
    row_floats_ = row_floats;
  }
  bool pending() const { return to_ != nullptr; }
  ASHLAR_TILES_INLINE void flush() {
    if (!to_) return;
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    to_ = nullptr;
  }

 private:
  static constexpr int64_t kUpper = 2;  // tiles 0 and 1 hold the upper rows
  template <int kTile>
  ASHLAR_TILES_INLINE static int64_t at(int64_t row_floats) {
    return kTile / kUpper * kHalfStrip * row_floats + kTile % kUpper * kHalfStrip;
  }
  template <int kTile>
  ASHLAR_TILES_INLINE void store() const {
    amx::store<kTile>(to_ + at<kTile>(row_floats_), row_floats_ * 4);
  }
  template <int kTile>
  ASHLAR_TILES_INLINE void turn(const float* from, int64_t row_floats) const {
    if (to_) store<kTile>();
    if (from)
      amx::load<kTile>(from + at<kTile>(row_floats), row_floats * 4);
    else
      amx::zero<kTile>();
  }

  float* to_ = nullptr;
  int64_t row_floats_ = 0;
};

// Adds the products of 32 left rows, a depth of 32, and a panel.
ASHLAR_TILES_INLINE void add_products(const std::byte* left, int64_t row_bytes,
                                      const std::byte* panel) {
  amx::load<4>(left, row_bytes);
  amx::load<6>(panel, kPairRowBytes);
  amx::load<7>(panel + 64, kPairRowBytes);
  amx::load<5>(left + kHalfStrip * row_bytes, row_bytes);
  amx::multiply_add<0, 4, 6>();
  amx::multiply_add<1, 4, 7>();
  amx::multiply_add<2, 5, 6>();
  amx::multiply_add<3, 5, 7>();
}

// Whether a query may see so many keys of a segment that heads are best walked one after the other.
inline bool sees_many_keys(const AttentionArgs& call) {
  constexpr int64_t kMany = 1024;
  int64_t most = 0;
  for (const Segment& key : call.keys) most = std::max<int64_t>(most, key.length);
  return (call.shape.window > 0 ? std::min(most, call.shape.window) : most) >= kMany;
}

bool attention_has_tiles(const AttentionArgs& call);  // this call, on this machine
void attention_forward_tiles(const AttentionArgs& call);
void attention_backward_tiles(const AttentionArgs& call, const AttentionGradients& gradients);

}  // namespace ashlar::kernels::cpu
