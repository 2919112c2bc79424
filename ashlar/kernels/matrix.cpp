#include "ashlar/kernels/matrix.h"

#include "ashlar/core/error.h"

namespace ashlar::kernels {

Matrix Matrix::of(const Tensor& tensor) {
  ASHLAR_ASSERT(tensor.shape.ndim() >= 1);
  const int64_t cols = tensor.shape[tensor.shape.ndim() - 1];
  return {tensor.data, tensor.dtype, cols == 0 ? 0 : tensor.numel() / cols, cols, cols};
}

Matrix Matrix::columns(int64_t begin, int64_t end) const {
  ASHLAR_ASSERT(0 <= begin && begin <= end && end <= cols);
  return {data ? data + begin * size_of(dtype) : nullptr, dtype, rows, end - begin, stride};
}

Matrix Matrix::row_range(int64_t begin, int64_t end) const {
  ASHLAR_ASSERT(0 <= begin && begin <= end && end <= rows);
  return {data ? data + begin * stride * size_of(dtype) : nullptr, dtype, end - begin, cols,
          stride};
}

}  // namespace ashlar::kernels
