// Tile instructions (AMX) as inline assembly that tells the compiler all that they touch.
//
// The intrinsics of GCC 12 do not: the operand of its `_tile_loadconfig` covers the first 8 bytes
// of the 64 that `ldtilecfg` reads, and its tile loads name no memory at all, so that the compiler
// may drop, or move past them, the stores that filled what they read.  Here a configuration is an
// operand as a whole and loads and stores of tiles are barriers.  They are volatile and so keep
// their order among each other, which the tile registers, unknown to the compiler, rely on.
#pragma once

#include <cstddef>
#include <cstdint>

// A function of tiles and vectors, and one that is part of its callers.
#define ASHLAR_TILES                                                                \
  [[gnu::target(                                                                    \
      "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,bmi2,amx-tile,amx-" \
      "bf16")]]
#define ASHLAR_TILES_INLINE ASHLAR_TILES [[gnu::always_inline]] inline

namespace ashlar::kernels::cpu::amx {

// The 64 bytes of palette 1: eight tiles of at most 16 rows of at most 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Sets the shapes of this thread's tiles and zeroes them; release() gives them up.
[[gnu::target("amx-tile,amx-bf16")]] inline void load_config(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
[[gnu::target("amx-tile,amx-bf16")]] inline void release() {
  __asm__ volatile("tilerelease" : : : "memory");
}

template <int kTile>
[[gnu::target("amx-tile,amx-bf16")]] inline void zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// The rows of the tile from memory, stride bytes apart.
template <int kTile>
[[gnu::target("amx-tile,amx-bf16")]] inline void load(const void* rows, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(rows), "r"(stride), "i"(kTile)
                   : "memory");
}
// The same of an operand that passes through the first-level cache once, while another stays there:
// the hint keeps the lines of the other in place.
template <int kTile>
[[gnu::target("amx-tile,amx-bf16")]] inline void load_passing(const void* rows, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(rows), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
[[gnu::target("amx-tile,amx-bf16")]] inline void store(void* rows, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(rows), "r"(stride), "i"(kTile)
                   : "memory");
}
// sum[m][n] += left[m][2k] right[k][2n] + left[m][2k + 1] right[k][2n + 1], of bf16 into fp32:
// 16 x 16 x 32 multiply-adds where all tiles are full.
template <int kSum, int kLeft, int kRight>
[[gnu::target("amx-tile,amx-bf16")]] inline void multiply_add() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}
inline constexpr int64_t kFlopPerMultiply = 2 * 16 * 16 * 32;

// `rounds` times kPeakChains multiplications of full tiles that do not wait for each other (one
// takes 52 cycles and a new one starts every 16): what the tiles of a thread sustain.
inline constexpr int64_t kPeakChains = 6;
void spin(int64_t rounds);

}  // namespace ashlar::kernels::cpu::amx
