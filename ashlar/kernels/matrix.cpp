#include "ashlar/kernels/matrix.h"

#include "ashlar/core/error.h"

namespace ashlar::kernels {

Matrix Matrix::of(const Tensor& tensor) {
  ASHLAR_ASSERT(tensor.shape.ndim() >= 1);
  const int last = tensor.shape.ndim() - 1;
  int64_t rows = 1;
  for (int dim = 0; dim < last; ++dim) rows *= tensor.shape[dim];
  const int64_t cols = tensor.shape[last];
  return {tensor.data, tensor.dtype, rows, cols, cols};
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
