// 32 x 32 sums of a warp: how matrix units spread operands over lanes, which no other code than
// this and scores.h knows.
//
//   multiply   C += A B^T over 16 columns of A [32, 16] and of B [32, 16], bf16 in shared memory,
//              rows `stride` elements apart; Transposed::kYes: B is [16, 32], and C += A B.  Both
//              addresses and strides are even numbers of elements.
//   load_left, load_right   the shares that this thread has of A and B, to be multiplied more than
//              once; Transposed::kYes: A is [16, 32]
//   each       calls use(row, column, element) for each element of C that this thread holds
//   held       number e of kHeld such elements, at row(e) and column(e)
//
// Cost     32,768 flop a warp and call.
// Numerics fp32 sums; their order within a call is the device's own.
#pragma once

#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

// mma.m16n8k16 (PTX ISA): lane = 4 group + member.  Register r of a holds two neighbours of a row,
// register r of b two neighbours of a column, from these places on; c has single elements.
struct NvidiaLanes {
  static constexpr int kThreads = 32;
  ASHLAR_DEVICE static int a_row(int lane, int r) { return lane / 4 + 8 * (r % 2); }
  ASHLAR_DEVICE static int a_depth(int lane, int r) { return 2 * (lane % 4) + 8 * (r / 2); }
  ASHLAR_DEVICE static int b_column(int lane) { return lane / 4; }
  ASHLAR_DEVICE static int b_depth(int lane, int r) { return 2 * (lane % 4) + 8 * r; }
  ASHLAR_DEVICE static int c_row(int lane, int r) { return lane / 4 + 8 * (r / 2); }
  ASHLAR_DEVICE static int c_column(int lane, int r) { return 2 * (lane % 4) + r % 2; }
};

// v_mfma_f32_32x32x8_bf16_1k (AMD's matrix instruction calculator): a lane holds four neighbours of
// a row of a, and of a column of b; s is the number of the instruction.
struct AmdLanes {
  static constexpr int kThreads = 64;
  ASHLAR_DEVICE static int line(int lane) { return lane % 32; }  // row of a, column of b
  ASHLAR_DEVICE static int depth(int lane, int s) { return 8 * s + 4 * (lane / 32); }
  ASHLAR_DEVICE static int c_row(int lane, int r) { return 8 * (r / 4) + 4 * (lane / 32) + r % 4; }
  ASHLAR_DEVICE static int c_column(int lane, int) { return lane % 32; }
};

enum class Transposed : bool { kNo, kYes };

// Elements (line, depth) and (line, depth + 1) of an operand.
template <Transposed transposed>
ASHLAR_DEVICE uint32_t load_pair(const Bf16* from, int stride, int line, int depth) {
  if constexpr (transposed == Transposed::kYes)
    return from[depth * stride + line].bits | uint32_t(from[(depth + 1) * stride + line].bits)
                                                  << 16;
  else
    return *(const uint32_t*)(from + line * stride + depth);
}
template <Transposed transposed>
ASHLAR_DEVICE uint64_t load_four(const Bf16* from, int stride, int line, int depth) {
  return load_pair<transposed>(from, stride, line, depth) |
         uint64_t(load_pair<transposed>(from, stride, line, depth + 2)) << 32;
}

// Two floats rounded to bf16, the first in the lower half.
ASHLAR_DEVICE uint32_t pair_of(float low, float high) {
  return to_bf16(low).bits | uint32_t(to_bf16(high).bits) << 16;
}

// The sums that a lane holds are declared by the size of Lanes, so that a compiler looks for the
// matrix instruction only where a tile is used: each vendor's half has one of them.
template <typename Lanes, int threads = Lanes::kThreads>
class TileOf;

template <typename Lanes>
class TileOf<Lanes, 32> {
 public:
  static constexpr int kSize = 32, kDepth = 16, kHeld = 32;
  struct Left {
    uint32_t words[2][4];
  };
  struct Right {
    uint32_t words[4][2];
  };

  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE static Left load_left(const Bf16* from, int stride) {
    const int lane = thread_index() % 32;
    Left a;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        a.words[i][r] = load_pair<transposed>(from, stride, 16 * i + Lanes::a_row(lane, r),
                                              Lanes::a_depth(lane, r));
    }
    return a;
  }
  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE static Right load_right(const Bf16* from, int stride) {
    const int lane = thread_index() % 32;
    Right b;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        b.words[j][r] = load_pair<transposed>(from, stride, 8 * j + Lanes::b_column(lane),
                                              Lanes::b_depth(lane, r));
    }
    return b;
  }
  ASHLAR_DEVICE void multiply(const Left& a, const Right& b) {
    mma_16x8x16(c_, a.words, b.words);
  }
  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE void multiply(const Bf16* a, int a_stride, const Bf16* b, int b_stride) {
    multiply(load_left(a, a_stride), load_right<transposed>(b, b_stride));
  }

  ASHLAR_DEVICE float& held(int e) {
    return c_[e / 16][e / 4 % 4][e % 4];
  }
  ASHLAR_DEVICE static int row(int e) {
    return 16 * (e / 16) + Lanes::c_row(thread_index() % 32, e % 4);
  }
  ASHLAR_DEVICE static int column(int e) {
    return 8 * (e / 4 % 4) + Lanes::c_column(thread_index() % 32, e % 4);
  }
  // C, rounded, as A: a thread holds the same places of both.  Columns [kDepth step, + kDepth).
  ASHLAR_DEVICE Left as_left(int step) const {
    Left a;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float* c = c_[i][2 * step + r / 2];
        a.words[i][r] = pair_of(c[2 * (r % 2)], c[2 * (r % 2) + 1]);
      }
    }
    return a;
  }

  template <typename Use>
  ASHLAR_DEVICE void each(Use use) {
#pragma unroll
    for (int e = 0; e < kHeld; ++e) use(row(e), column(e), held(e));
  }

 private:
  float c_[2][4][128 / Lanes::kThreads] = {};
};

template <typename Lanes>
class TileOf<Lanes, 64> {
 public:
  static constexpr int kSize = 32, kDepth = 16, kHeld = 16;
  struct Left {
    uint64_t words[2];
  };
  using Right = Left;

  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE static Left load_left(const Bf16* from, int stride) {
    const int lane = thread_index() % 64;
    Left a;
#pragma unroll
    for (int s = 0; s < 2; ++s)
      a.words[s] = load_four<transposed>(from, stride, Lanes::line(lane), Lanes::depth(lane, s));
    return a;
  }
  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE static Right load_right(const Bf16* from, int stride) {
    return load_left<transposed>(from, stride);
  }
  ASHLAR_DEVICE void multiply(const Left& a, const Right& b) {
    mfma_32x32x8(c_, a.words, b.words);
  }
  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE void multiply(const Bf16* a, int a_stride, const Bf16* b, int b_stride) {
    multiply(load_left(a, a_stride), load_right<transposed>(b, b_stride));
  }

  ASHLAR_DEVICE float& held(int e) {
    return c_[e];
  }
  ASHLAR_DEVICE static int row(int e) {
    return Lanes::c_row(thread_index() % 64, e);
  }
  ASHLAR_DEVICE static int column(int e) {
    return Lanes::c_column(thread_index() % 64, e);
  }
  // C, rounded, as B: a thread holds the same places of both.  Rows [kDepth step, + kDepth).
  ASHLAR_DEVICE Right as_right(int step) const {
    Right b;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float* c = c_ + 4 * (2 * step + s);
      b.words[s] = pair_of(c[0], c[1]) | uint64_t(pair_of(c[2], c[3])) << 32;
    }
    return b;
  }

  template <typename Use>
  ASHLAR_DEVICE void each(Use use) {
#pragma unroll
    for (int e = 0; e < kHeld; ++e) use(row(e), column(e), held(e));
  }

 private:
  float c_[1024 / Lanes::kThreads] = {};
};

template <int warp>
struct LanesOf {
  using Type = NvidiaLanes;
};
template <>
struct LanesOf<64> {
  using Type = AmdLanes;
};
using WarpTile = TileOf<LanesOf<kWarp>::Type>;

// The same in fp32, without matrix units: sums by fma in the order of the depth.  A group of 32
// lanes has 1024 / warp rows, and a lane every eighth of them, there every fourth column.  So bits
// do not depend on the size of a warp.
template <int warp>
class FloatTile {
 public:
  static constexpr int kSize = 32, kDepth = 1;
  static constexpr int kRows = kSize * kLanes / warp, kSlots = kRows / 8, kColumns = kSize / 4;
  struct Left {
    float at[kSlots];
  };
  struct Right {
    float at[kColumns];
  };

  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE static Left load_left(const float* from, int stride) {
    Left a;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
      a.at[slot] = from[transposed == Transposed::kYes ? row(slot) : row(slot) * stride];
    return a;
  }
  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE static Right load_right(const float* from, int stride) {
    Right b;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      b.at[j] = from[transposed == Transposed::kYes ? column(j) : column(j) * stride];
    return b;
  }
  ASHLAR_DEVICE void multiply(const Left& a, const Right& b) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) c_[slot][j] = fma(a.at[slot], b.at[j], c_[slot][j]);
    }
  }

  template <typename Use>
  ASHLAR_DEVICE void each(Use use) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) use(row(slot), column(j), c_[slot][j]);
    }
  }

 private:
  ASHLAR_DEVICE static int row(int slot) {
    return thread_index() % warp / kLanes * kRows + thread_index() % kLanes / 4 + 8 * slot;
  }
  ASHLAR_DEVICE static int column(int j) {
    return thread_index() % 4 + 4 * j;
  }

  float c_[kSlots][kColumns] = {};
};

// The tile for operands of this type.
template <typename Element>
struct TileFor {
  using Type = WarpTile;
};
template <>
struct TileFor<float> {
  using Type = FloatTile<kWarp>;
};

}  // namespace ashlar::device
