// 32 x 32 sums of a warp: the only code that knows how matrix units spread operands over lanes.
//
//   multiply   C += A B^T over 16 columns of A [32, 16] and of B [32, 16], bf16 in shared memory,
//              rows `stride` elements apart; Transposed::kYes: B is [16, 32], and C += A B.  Both
//              addresses and strides are even numbers of elements.
//   each       calls use(row, column, element) for each element of C that this thread holds
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

// The sums that a lane holds are declared by the size of Lanes, so that a compiler looks for the
// matrix instruction only where a tile is used: each vendor's half has one of them.
template <typename Lanes, int threads = Lanes::kThreads>
class TileOf;

template <typename Lanes>
class TileOf<Lanes, 32> {
 public:
  static constexpr int kSize = 32, kDepth = 16;

  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE void multiply(const Bf16* a, int a_stride, const Bf16* b, int b_stride) {
    const int lane = thread_index() % 32;
    uint32_t left[2][4], right[4][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        left[i][r] = load_pair<Transposed::kNo>(a, a_stride, 16 * i + Lanes::a_row(lane, r),
                                                Lanes::a_depth(lane, r));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        right[j][r] = load_pair<transposed>(b, b_stride, 8 * j + Lanes::b_column(lane),
                                            Lanes::b_depth(lane, r));
    }
    mma_16x8x16(c_, left, right);
  }

  template <typename Use>
  ASHLAR_DEVICE void each(Use use) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r)
          use(16 * i + Lanes::c_row(lane, r), 8 * j + Lanes::c_column(lane, r), c_[i][j][r]);
      }
    }
  }

 private:
  float c_[2][4][128 / Lanes::kThreads] = {};
};

template <typename Lanes>
class TileOf<Lanes, 64> {
 public:
  static constexpr int kSize = 32, kDepth = 16;

  template <Transposed transposed = Transposed::kNo>
  ASHLAR_DEVICE void multiply(const Bf16* a, int a_stride, const Bf16* b, int b_stride) {
    const int lane = thread_index() % 64;
    uint64_t left[2], right[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      left[s] = load_four<Transposed::kNo>(a, a_stride, Lanes::line(lane), Lanes::depth(lane, s));
      right[s] = load_four<transposed>(b, b_stride, Lanes::line(lane), Lanes::depth(lane, s));
    }
    mfma_32x32x8(c_, left, right);
  }

  template <typename Use>
  ASHLAR_DEVICE void each(Use use) {
    const int lane = thread_index() % 64;
#pragma unroll
    for (int r = 0; r < 16; ++r) use(Lanes::c_row(lane, r), Lanes::c_column(lane, r), c_[r]);
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

}  // namespace ashlar::device
