// Scores of 32 rows against 32 columns, and products with them: what attention is written in.  Rows
// are the lines that sums belong to, queries or keys; columns are the others.  A warp has scores in
// registers, and each of its threads has elements of kSlots rows, its slots.
//
//   multiply   S += A B^T, of 32 lines of each operand and all of their width
//   for_each_score   calls use(slot, row, column, element) for all elements that this thread holds,
//              or with those of two scores at the same place
//   row        the row of a slot
//   join       f over x[slot] of all threads that share the row of the slot
//   is_first   whether this thread is the first of those
//
// ScoreSums are O [32, 32 kTiles], with the same slots:
//   add        O += S X, with S rounded to the type of X: 32 lines, from a column on
//   scale      multiplies rows by factor[slot]
//   for_each_sum     as for_each_score
//
// Implementations: NVIDIA keeps S = A B^T, whose places are those of the left operand of S X.  AMD
// keeps S^T = B A^T, in which two threads share a row, and whose places are those of the right
// operand of O^T = X^T S^T.  fp32 uses no matrix unit.  Its lanes have rows as on NVIDIA, always in
// groups of 32, which makes the bits independent of the size of a warp; lanes of a row exchange S
// through shared memory.  Besides tile.h this is the only code that knows lane maps.
#pragma once

#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/tile.h"

namespace ashlar::device {

// The lines of an operand.  bf16 lines are in shared memory, 32 or more, with a width that 16
// divides.  fp32 lines are in global memory.  A line beyond the last reads the last one, and a
// column beyond the width the last column: they only reach scores and sums that are never stored.
template <typename Element>
struct Lines;
template <>
struct Lines<Bf16> {
  const Bf16* data;
  int stride, width;
  ASHLAR_DEVICE Lines from(int line) const { return {data + line * stride, stride, width}; }
};
template <>
struct Lines<float> {
  const float* data;
  int64_t stride;
  int count, width;
  ASHLAR_DEVICE Lines from(int line) const {
    return {data + line * stride, stride, count - line, width};
  }
  ASHLAR_DEVICE float at(int line, int column) const {
    return data[(line < count ? line : count - 1) * stride + (column < width ? column : width - 1)];
  }
};

template <typename Lanes>
class NvidiaScores {
 public:
  using Tile = TileOf<Lanes>;
  static constexpr int kSlots = 4, kHeld = Tile::kHeld, kRoomBytes = 0;
  ASHLAR_DEVICE explicit NvidiaScores(std::byte*) {}

  ASHLAR_DEVICE void multiply(const Lines<Bf16>& a, const Lines<Bf16>& b) {
#pragma unroll 1  // there are no registers for more
    for (int d = 0; d < a.width; d += Tile::kDepth)
      s_.multiply(a.data + d, a.stride, b.data + d, b.stride);
  }
  ASHLAR_DEVICE static int row(int slot) {
    return Tile::row(16 * (slot / 2) + 2 * (slot % 2));
  }
  template <typename Join>
  ASHLAR_DEVICE static void join(float (&x)[kSlots], Join f) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      x[slot] = f(x[slot], warp_xor(x[slot], 1));
      x[slot] = f(x[slot], warp_xor(x[slot], 2));
    }
  }
  ASHLAR_DEVICE static bool is_first() {
    return thread_index() % 4 == 0;
  }

  ASHLAR_DEVICE static constexpr int slot_of(int e) {
    return 2 * (e / 16) + e % 4 / 2;
  }
  ASHLAR_DEVICE static int row_of(int e) {
    return Tile::row(e);
  }
  ASHLAR_DEVICE static int column_of(int e) {
    return Tile::column(e);
  }
  ASHLAR_DEVICE float& held(int e) {
    return s_.held(e);
  }
  ASHLAR_DEVICE typename Tile::Left operand(int step) const {
    return s_.as_left(step);
  }

 private:
  Tile s_;
};

template <typename Lanes, int tiles>
class NvidiaSums {
 public:
  static constexpr int kTiles = tiles;
  using Scores = NvidiaScores<Lanes>;
  using Tile = TileOf<Lanes>;

  ASHLAR_DEVICE void add(const Scores& s, const Lines<Bf16>& x, int first_column) {
#pragma unroll
    for (int step = 0; step < Tile::kSize / Tile::kDepth; ++step) {
      const typename Tile::Left left = s.operand(step);
      const Bf16* from = x.data + step * Tile::kDepth * x.stride + first_column;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        o_[tile].multiply(
            left, Tile::template load_right<Transposed::kYes>(from + tile * Tile::kSize, x.stride));
    }
  }
  ASHLAR_DEVICE float& held(int tile, int e) {
    return o_[tile].held(e);
  }

 private:
  Tile o_[kTiles];
};

template <typename Lanes>
class AmdScores {
 public:
  using Tile = TileOf<Lanes>;
  static constexpr int kSlots = 1, kHeld = Tile::kHeld, kRoomBytes = 0;
  ASHLAR_DEVICE explicit AmdScores(std::byte*) {}

  ASHLAR_DEVICE void multiply(const Lines<Bf16>& a, const Lines<Bf16>& b) {
    for (int d = 0; d < a.width; d += Tile::kDepth)
      transposed_.multiply(b.data + d, b.stride, a.data + d, a.stride);
  }
  ASHLAR_DEVICE static int row(int) { return Tile::column(0); }
  template <typename Join>
  ASHLAR_DEVICE static void join(float (&x)[kSlots], Join f) {
    x[0] = f(x[0], warp_xor(x[0], 32));
  }
  ASHLAR_DEVICE static bool is_first() { return thread_index() % 64 < 32; }

  ASHLAR_DEVICE static constexpr int slot_of(int) { return 0; }
  ASHLAR_DEVICE static int row_of(int e) { return Tile::column(e); }
  ASHLAR_DEVICE static int column_of(int e) { return Tile::row(e); }
  ASHLAR_DEVICE float& held(int e) { return transposed_.held(e); }
  ASHLAR_DEVICE typename Tile::Right operand(int step) const { return transposed_.as_right(step); }

 private:
  Tile transposed_;
};

template <typename Lanes, int tiles>
class AmdSums {
 public:
  static constexpr int kTiles = tiles;
  using Scores = AmdScores<Lanes>;
  using Tile = TileOf<Lanes>;

  ASHLAR_DEVICE void add(const Scores& s, const Lines<Bf16>& x, int first_column) {
#pragma unroll
    for (int step = 0; step < Tile::kSize / Tile::kDepth; ++step) {
      const typename Tile::Right right = s.operand(step);
      const Bf16* from = x.data + step * Tile::kDepth * x.stride + first_column;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        transposed_[tile].multiply(
            Tile::template load_left<Transposed::kYes>(from + tile * Tile::kSize, x.stride), right);
    }
  }
  ASHLAR_DEVICE float& held(int tile, int e) {
    return transposed_[tile].held(e);
  }

 private:
  Tile transposed_[kTiles];
};

// A group of 32 lanes has 1024 / warp rows.  A lane has every eighth of them, and there every
// fourth column.
template <int warp>
class FloatScores {
 public:
  static constexpr int kSize = 32, kRows = kSize * kLanes / warp, kSlots = kRows / 8;
  static constexpr int kColumns = kSize / 4, kHeld = kSlots * kColumns, kStride = kSize + 1;
  static constexpr int kRoomBytes = kSize * kStride * int(sizeof(float));  // of a warp
  ASHLAR_DEVICE explicit FloatScores(std::byte* room) : room_((float*)room) {}

  ASHLAR_DEVICE void multiply(const Lines<float>& a, const Lines<float>& b) {
    for (int d = 0; d < a.width; ++d) {
      float left[kSlots];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) left[slot] = a.at(row(slot), d);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float right = b.at(column_of(j), d);
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) s_[slot][j] = fma(left[slot], right, s_[slot][j]);
      }
    }
  }
  ASHLAR_DEVICE static int row(int slot) {
    return thread_index() % warp / kLanes * kRows + thread_index() % kLanes / 4 + 8 * slot;
  }
  template <typename Join>
  ASHLAR_DEVICE static void join(float (&x)[kSlots], Join f) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      x[slot] = f(x[slot], lane_xor(x[slot], 1));
      x[slot] = f(x[slot], lane_xor(x[slot], 2));
    }
  }
  ASHLAR_DEVICE static bool is_first() {
    return thread_index() % 4 == 0;
  }

  ASHLAR_DEVICE static constexpr int slot_of(int e) {
    return e / kColumns;
  }
  ASHLAR_DEVICE static int row_of(int e) {
    return row(slot_of(e));
  }
  ASHLAR_DEVICE static int column_of(int e) {
    return thread_index() % 4 + e % kColumns * 4;
  }
  ASHLAR_DEVICE float& held(int e) {
    return s_[slot_of(e)][e % kColumns];
  }

  // All scores of the rows of this group of lanes, kStride apart.
  ASHLAR_DEVICE const float* stored() {
    sync_lanes();  // those that were stored before have been read
#pragma unroll
    for (int e = 0; e < kHeld; ++e) room_[row_of(e) * kStride + column_of(e)] = held(e);
    sync_lanes();
    return room_;
  }

 private:
  float* room_;
  float s_[kSlots][kColumns] = {};
};

template <int warp, int tiles>
class FloatSums {
 public:
  static constexpr int kTiles = tiles;
  using Scores = FloatScores<warp>;

  ASHLAR_DEVICE void add(Scores& s, const Lines<float>& x, int first_column) {
    const float* stored = s.stored();
    for (int line = 0; line < Scores::kSize && line < x.count; ++line) {
      float left[Scores::kSlots];
#pragma unroll
      for (int slot = 0; slot < Scores::kSlots; ++slot)
        left[slot] = stored[Scores::row(slot) * Scores::kStride + line];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < Scores::kColumns; ++j) {
          const float right =
              x.at(line, first_column + tile * Scores::kSize + Scores::column_of(j));
#pragma unroll
          for (int slot = 0; slot < Scores::kSlots; ++slot)
            o_[tile][slot][j] = fma(left[slot], right, o_[tile][slot][j]);
        }
      }
    }
  }
  ASHLAR_DEVICE float& held(int tile, int e) {
    return o_[tile][Scores::slot_of(e)][e % Scores::kColumns];
  }

 private:
  float o_[kTiles][Scores::kSlots][Scores::kColumns] = {};
};

template <typename Scores, typename Use>
ASHLAR_DEVICE void for_each_score(Scores& s, Use use) {
#pragma unroll
  for (int e = 0; e < Scores::kHeld; ++e)
    use(Scores::slot_of(e), Scores::row_of(e), Scores::column_of(e), s.held(e));
}
template <typename Scores, typename Use>
ASHLAR_DEVICE void for_each_score(Scores& s, Scores& other, Use use) {
#pragma unroll
  for (int e = 0; e < Scores::kHeld; ++e)
    use(Scores::slot_of(e), Scores::row_of(e), Scores::column_of(e), s.held(e), other.held(e));
}
template <typename Sums, typename Use>
ASHLAR_DEVICE void for_each_sum(Sums& sums, Use use) {
  using S = typename Sums::Scores;
#pragma unroll
  for (int tile = 0; tile < Sums::kTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < S::kHeld; ++e)
      use(S::slot_of(e), S::row_of(e), 32 * tile + S::column_of(e), sums.held(tile, e));
  }
}
template <typename Sums>
ASHLAR_DEVICE void scale(Sums& sums, const float (&factor)[Sums::Scores::kSlots]) {
  for_each_sum(sums, [&](int slot, int, int, float& sum) { sum = mul(sum, factor[slot]); });
}

template <typename Element, int warp>
struct ScoresOf;
template <>
struct ScoresOf<Bf16, 32> {
  using Type = NvidiaScores<NvidiaLanes>;
  template <int kTiles>
  using Sums = NvidiaSums<NvidiaLanes, kTiles>;
};
template <>
struct ScoresOf<Bf16, 64> {
  using Type = AmdScores<AmdLanes>;
  template <int kTiles>
  using Sums = AmdSums<AmdLanes, kTiles>;
};
template <int warp>
struct ScoresOf<float, warp> {
  using Type = FloatScores<warp>;
  template <int kTiles>
  using Sums = FloatSums<warp, kTiles>;
};

template <typename Element>
using WarpScores = typename ScoresOf<Element, kWarp>::Type;
template <typename Element, int kTiles>
using ScoreSums = typename ScoresOf<Element, kWarp>::template Sums<kTiles>;

}  // namespace ashlar::device
