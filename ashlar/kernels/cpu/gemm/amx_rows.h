// Few rows times a bf16 panel on vectors, with the bits of the tile instructions.
#pragma once

#include "ashlar/kernels/cpu/gemm/bf16.h"

namespace ashlar::kernels::cpu::gemm {

inline constexpr int64_t kMaxVectorRows = 2;
// The rows that an engine's tile takes on vectors; 0: none.  The engine with strips is that of AMX.
inline int64_t vector_rows(const Engine& engine) {
  return engine.strip ? kMaxVectorRows : 0;
}

// Engine::tile of the AMX engine, for rows <= kMaxVectorRows.  Needs AVX-512; padded_k is a
// multiple of 32.
void amx_rows_tile(int64_t rows, int64_t padded_k, const Left& a, const std::byte* panel, float* c,
                   int64_t c_stride, bool accumulate);
// The same without accumulate over a panel of bytes (int8.h).
void amx_rows_tile_int8(int64_t rows, int64_t padded_k, const Left& a, const int8_t* panel,
                        float* c, int64_t c_stride);

}  // namespace ashlar::kernels::cpu::gemm
