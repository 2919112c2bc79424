// The plain product that every fast path is measured against, for any mix of F64, F32 and BF16
// operands in any strides.  It serves fp64 and machines without AVX2.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels::cpu::gemm {

// Element (i, j) is at data + (i * row_stride + j * col_stride) elements.
struct Strided {
  std::byte* data;
  DType dtype;
  int64_t row_stride, col_stride;
  Strided transposed() const { return {data, dtype, col_stride, row_stride}; }
};

// C [M, N] (+)= A [M, K] B [K, N].  compute BF16: operands rounded to bf16, sums in fp32.  Each
// element of C is summed in the order of k; tasks are square blocks of C.
void reference_product(Threads& threads, DType compute, int64_t M, int64_t N, int64_t K,
                       const Strided& a, const Strided& b, const Strided& c, bool accumulate);

}  // namespace ashlar::kernels::cpu::gemm
