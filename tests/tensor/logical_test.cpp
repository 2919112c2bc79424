#include "ashlar/tensor/logical.h"

#include <gtest/gtest.h>

namespace ashlar {
namespace {

TEST(MatrixShape, CountsMatricesOverAllLeadingDims) {
  const auto expect = [](const Shape& shape, int64_t num_matrices, int64_t rows, int64_t cols) {
    const MatrixShape matrix = matrix_shape(shape, num_matrices);
    EXPECT_EQ(matrix.rows, rows);
    EXPECT_EQ(matrix.cols, cols);
  };
  expect({6, 4}, 1, 6, 4);
  expect({5, 8, 3}, 5, 8, 3);
  expect({5, 8, 3}, 10, 4, 3);  // gate and up apart
  expect({7}, 1, 1, 7);
}

}  // namespace
}  // namespace ashlar
