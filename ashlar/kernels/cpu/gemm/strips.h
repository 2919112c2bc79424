// multiply and reduce (drive.h) for engines that make strips.
#pragma once

#include "ashlar/kernels/cpu/gemm/drive.h"

namespace ashlar::kernels::cpu::gemm {

void multiply_strips(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                     int64_t K, const Matrix& a, const std::byte* panels, const Matrix& c,
                     bool accumulate, const ProductForm& form);
void reduce_strips(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                   int64_t K, const Matrix& dy, const Matrix& x, float* dw, bool accumulate,
                   const ProductForm& form);

}  // namespace ashlar::kernels::cpu::gemm
