// Packing to bf16, shared by the engines that read bf16 panels of 32 columns (AVX-512 BF16, AMX).
// All functions need AVX-512 BF16.  num_k and num_cols are those of the source; the rest, up to
// padded_k and 32, is zero.
#pragma once

#include "ashlar/kernels/cpu/gemm/engine.h"

namespace ashlar::kernels::cpu::gemm {

inline constexpr int64_t kBf16Width = 32;

void pack_bf16_panel(const Source& source, int64_t num_k, int64_t num_cols, int64_t padded_k,
                     std::byte* panel);
// All panels of a source, panel_bytes apart.
void pack_bf16_panels(const Source& source, int64_t num_k, int64_t num_cols, int64_t padded_k,
                      std::byte* panels, int64_t panel_bytes);
void pack_bf16_panel_transposed(const Source& source, int64_t num_k, int64_t num_cols,
                                int64_t padded_k, std::byte* panel);
// See Engine::pack_both.
void pack_bf16_both(const Source& source, int64_t num_cols, std::byte* transposed, std::byte* plain,
                    int64_t stride);
void pack_bf16_rows(const Source& source, int64_t num_rows, int64_t num_k, int64_t padded_k,
                    std::byte* to, int64_t row_bytes);
void scale_rows(const Source& source, int64_t num_rows, int64_t num_cols, float factor, float* to);
// to[j][i] = from[i][j] for 16 x 16 pairs.
void transpose_bf16_pairs(const std::byte* from, int64_t from_bytes, std::byte* to,
                          int64_t to_bytes);
// The same where the rows of `from` come in fours: four in a row, then four are left out.
void transpose_bf16_fours(const std::byte* from, int64_t from_bytes, std::byte* to,
                          int64_t to_bytes);
// to[c][k] = source[k][c] for a block of 32 x 32, of which the source has num_k x num_cols.
void transpose_bf16_block(const Source& source, int64_t num_k, int64_t num_cols, std::byte* to,
                          int64_t to_bytes);
// See Engine::strip; the tiles are shaped for its rows.
void amx_strip(const Strip& strip);

}  // namespace ashlar::kernels::cpu::gemm
