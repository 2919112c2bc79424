// The two matrix instructions, carried out for all lanes of a warp at once.  The places of elements
// are those of the vendors' own tables, written down apart from tile.h's.  Tests of products spend
// most of their time here.
#include <bit>
#include <cstring>

#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device::emulator {
namespace {

constexpr int kSide = 32, kDepth = 16;
using Eight = float __attribute__((vector_size(32)));
constexpr int kEights = kSide / 8;

// Operands and sums of an instruction, gathered from all lanes: sums += left right.
struct Whole {
  alignas(32) float left[kSide * kDepth], right[kDepth * kSide], sums[kSide * kSide];

  // Two rows of sums stay in registers over the depth, whose order is that of the sums.
  void multiply() {
    for (int i = 0; i < kSide; i += 2) {
      Eight of_rows[2][kEights];
      std::memcpy(of_rows, sums + i * kSide, sizeof of_rows);
      for (int k = 0; k < kDepth; ++k)
        for (int q = 0; q < kEights; ++q) {
          Eight b;
          std::memcpy(&b, right + k * kSide + 8 * q, sizeof b);
          of_rows[0][q] += left[i * kDepth + k] * b;
          of_rows[1][q] += left[(i + 1) * kDepth + k] * b;
        }
      std::memcpy(sums + i * kSide, of_rows, sizeof of_rows);
    }
  }
};

// Number `index` of the pairs of bf16 values at `words`.
struct Pair {
  Pair(const void* words, int index) {
    uint32_t word;
    std::memcpy(&word, static_cast<const std::byte*>(words) + sizeof word * size_t(index),
                sizeof word);
    first = std::bit_cast<float>(word << 16);
    second = std::bit_cast<float>(word & 0xffff0000u);
  }
  float first, second;
};

const Fragments& part_of(const void* lane) {
  return *static_cast<const Fragments*>(lane);
}

// Moves neighbouring floats between a lane's part and the whole.  Loops within a lane have constant
// bounds, and addresses that differ by constants: else they would take most of the time.
enum class To : bool { kWhole, kLanes };
template <To to, int count>
void move(float* whole, float* part) {
  std::memcpy(to == To::kWhole ? whole : part, to == To::kWhole ? part : whole,
              count * sizeof(float));
}

// PTX ISA, figures of mma.m16n8k16 with .bf16: lane = 4 group + member.  Values lie in pairs:
//   a  4 pairs: row group (+ 8 for pairs 1 and 3), columns from 2 member on (+ 8 for 2 and 3)
//   b  2 pairs: rows from 2 member on (+ 8 for pair 1) of column group
//   c  2 pairs: row group (+ 8 for pair 1), columns from 2 member on
// An instruction here is eight of the vendor's: rows from 16 m on, columns from 8 n on.
template <To to>
void move_nvidia_sums(Whole& x, void** lanes) {
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, member = l % 4;
    float *c = part_of(lanes[l]).c, *sums = x.sums + group * kSide + 2 * member;
    for (int m = 0; m < 2; ++m)
      for (int n = 0; n < 4; ++n)
        for (int i = 0; i < 2; ++i)
          move<to, 2>(sums + (16 * m + 8 * i) * kSide + 8 * n, c + 16 * m + 4 * n + 2 * i);
  }
}

// AMD's matrix instruction calculator, v_mfma_f32_32x32x8_bf16_1k, twice along the depth:
//   a  4 values: row lane % 32, columns from 4 (lane / 32) on
//   b  4 values: rows from 4 (lane / 32) on, column lane % 32
//   c  16 values: rows 8 (i / 4) + 4 (lane / 32) + i % 4, column lane % 32
// A lane holds neighbours of a column: C^T = B^T A^T is computed, in the same order of sums.
template <To to>
void move_amd_sums(Whole& x, void** lanes) {
  for (int l = 0; l < 64; ++l) {
    float *c = part_of(lanes[l]).c, *sums = x.sums + l % 32 * kSide + 4 * (l / 32);
    for (int four = 0; four < 4; ++four) move<to, 4>(sums + 8 * four, c + 4 * four);
  }
}

}  // namespace

void multiply_nvidia(void** lanes) {
  Whole x;
  for (int l = 0; l < 32; ++l) {
    const Fragments& f = part_of(lanes[l]);
    const int group = l / 4, member = l % 4;
    float* left = x.left + group * kDepth + 2 * member;
    for (int m = 0; m < 2; ++m)
      for (int i = 0; i < 4; ++i) {
        const Pair pair(f.a, 4 * m + i);
        const bool below = i == 1 || i == 3, beside = i == 2 || i == 3;
        float* to = left + (16 * m + (below ? 8 : 0)) * kDepth + (beside ? 8 : 0);
        to[0] = pair.first;
        to[1] = pair.second;
      }
    float* right = x.right + 2 * member * kSide + group;
    for (int n = 0; n < 4; ++n)
      for (int i = 0; i < 2; ++i) {
        const Pair pair(f.b, 2 * n + i);
        float* to = right + (i == 1 ? 8 : 0) * kSide + 8 * n;
        to[0] = pair.first;
        to[kSide] = pair.second;
      }
  }
  move_nvidia_sums<To::kWhole>(x, lanes);
  x.multiply();
  move_nvidia_sums<To::kLanes>(x, lanes);
}

void multiply_amd(void** lanes) {
  Whole x;
  for (int l = 0; l < 64; ++l) {
    const Fragments& f = part_of(lanes[l]);
    const int line = l % 32, upper = l / 32;
    float *of_a = x.right + 4 * upper * kSide + line, *of_b = x.left + line * kDepth + 4 * upper;
    for (int i = 0; i < 4; ++i) {
      const int depth = 8 * (i / 2) + 2 * (i % 2);
      const Pair a(f.a, i), b(f.b, i);
      of_a[depth * kSide] = a.first;
      of_a[(depth + 1) * kSide] = a.second;
      of_b[depth] = b.first;
      of_b[depth + 1] = b.second;
    }
  }
  move_amd_sums<To::kWhole>(x, lanes);
  x.multiply();
  move_amd_sums<To::kLanes>(x, lanes);
}

}  // namespace ashlar::device::emulator
