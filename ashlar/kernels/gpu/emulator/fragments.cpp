// The two matrix instructions, carried out for all lanes of a warp at once.  The places of elements
// are those of the vendors' own tables, written down apart from tile.h's.
#include <bit>
#include <cstring>

#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device::emulator {
namespace {

constexpr int kRows = 32, kDepth = 16;

struct Operands {
  float a[kRows][kDepth], b[kDepth][kRows];
};

// Number `index` of the bf16 values that lie packed at `words`.
float value(const void* words, int index) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const std::byte*>(words) + 2 * index, sizeof bits);
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

// c += a b; element(c, lane, r) is where element r of a lane's part of c stands.
template <typename Element>
void multiply(void** lanes, int warp, const Operands& x, Element element) {
  const int held = kRows * kRows / warp;
  float c[kRows][kRows];
  for (int l = 0; l < warp; ++l) {
    const float* part = static_cast<const Fragments*>(lanes[l])->c;
    for (int r = 0; r < held; ++r) element(c, l, r) = part[r];
  }
  for (int i = 0; i < kRows; ++i)
    for (int k = 0; k < kDepth; ++k)
      for (int j = 0; j < kRows; ++j) c[i][j] += x.a[i][k] * x.b[k][j];
  for (int l = 0; l < warp; ++l) {
    float* part = static_cast<const Fragments*>(lanes[l])->c;
    for (int r = 0; r < held; ++r) part[r] = element(c, l, r);
  }
}

}  // namespace

// PTX ISA, figures of mma.m16n8k16 with .bf16: lane = 4 group + member.
//   a  8 values: i in 0..7 is row group (+ 8 if i in {2, 3, 6, 7}), column 2 member + i % 2
//      (+ 8 if i >= 4)
//   b  4 values: row 2 member + i % 2 (+ 8 if i >= 2), column group
//   c  4 values: row group (+ 8 if i >= 2), column 2 member + i % 2
void multiply_nvidia(void** lanes) {
  Operands x;
  for (int l = 0; l < 32; ++l) {
    const auto& f = *static_cast<const Fragments*>(lanes[l]);
    const int group = l / 4, member = l % 4;
    for (int m = 0; m < 2; ++m)  // rows 16 m to 16 m + 15
      for (int i = 0; i < 8; ++i) {
        const bool low = i == 2 || i == 3 || i == 6 || i == 7;
        x.a[16 * m + group + (low ? 8 : 0)][2 * member + i % 2 + (i >= 4 ? 8 : 0)] =
            value(f.a, 8 * m + i);
      }
    for (int n = 0; n < 4; ++n)  // columns 8 n to 8 n + 7
      for (int i = 0; i < 4; ++i)
        x.b[2 * member + i % 2 + (i >= 2 ? 8 : 0)][8 * n + group] = value(f.b, 4 * n + i);
  }
  multiply(lanes, 32, x, [](auto& c, int l, int r) -> float& {
    const int m = r / 16, n = r / 4 % 4, i = r % 4;
    return c[16 * m + l / 4 + (i >= 2 ? 8 : 0)][8 * n + 2 * (l % 4) + i % 2];
  });
}

// AMD's matrix instruction calculator, v_mfma_f32_32x32x8_bf16_1k, twice along the depth:
//   a  4 values: row lane % 32, columns 4 (lane / 32) + i
//   b  4 values: rows 4 (lane / 32) + i, column lane % 32
//   c  16 values: row 8 (i / 4) + 4 (lane / 32) + i % 4, column lane % 32
void multiply_amd(void** lanes) {
  Operands x;
  for (int l = 0; l < 64; ++l) {
    const auto& f = *static_cast<const Fragments*>(lanes[l]);
    const int upper = l / 32, line = l % 32;
    for (int s = 0; s < 2; ++s)
      for (int i = 0; i < 4; ++i) {
        x.a[line][8 * s + 4 * upper + i] = value(f.a, 4 * s + i);
        x.b[8 * s + 4 * upper + i][line] = value(f.b, 4 * s + i);
      }
  }
  multiply(lanes, 64, x, [](auto& c, int l, int r) -> float& {
    return c[8 * (r / 4) + 4 * (l / 32) + r % 4][l % 32];
  });
}

}  // namespace ashlar::device::emulator
