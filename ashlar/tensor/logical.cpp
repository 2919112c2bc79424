#include "ashlar/tensor/logical.h"

namespace ashlar {

MatrixShape matrix_shape(const Shape& global_shape, int64_t num_matrices) {
  ASHLAR_ASSERT(global_shape.ndim() >= 1 && global_shape.numel() > 0 && num_matrices >= 1);
  const int64_t cols = global_shape[global_shape.ndim() - 1];
  const int64_t num_rows = global_shape.numel() / cols;
  ASHLAR_ASSERT(num_rows % num_matrices == 0);
  return {num_rows / num_matrices, cols};
}

}  // namespace ashlar
