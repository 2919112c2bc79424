// A strided view of activations: the one place where kernels read or write something that is not
// contiguous, as the query, key and value columns of a fused product.
#pragma once

#include "ashlar/tensor/tensor.h"

namespace ashlar::kernels {

// A strided view of a row-major activation matrix: rows x cols with `stride` elements between rows.
struct Matrix {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, stride = 0;
  static Matrix of(const Tensor& tensor);  // [.., cols]: leading dims are rows
  Matrix columns(int64_t begin, int64_t end) const;
  Matrix row_range(int64_t begin, int64_t end) const;
};

}  // namespace ashlar::kernels
