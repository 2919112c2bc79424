#include "ashlar/kernels/cpu/gemm/amx_tiles.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

[[gnu::target("amx-tile,amx-bf16")]] void spin(int64_t rounds) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = 16;
    config.row_bytes[i] = 64;
  }
  load_config(config);  // also makes all tiles zeros, which multiply at the rate of any number
  for (int64_t round = 0; round < rounds; ++round) {
    multiply_add<0, 6, 7>();
    multiply_add<1, 6, 7>();
    multiply_add<2, 6, 7>();
    multiply_add<3, 6, 7>();
    multiply_add<4, 6, 7>();
    multiply_add<5, 6, 7>();
  }
  release();
}

}  // namespace ashlar::kernels::cpu::amx

#endif
