// State that lasts, by name: logical tensors in global coordinates, and parameters of a model.
#pragma once

#include <string>
#include <vector>

#include "ashlar/tensor/tensor.h"

namespace ashlar {

// Element types as checkpoints store them.
enum class Role : uint8_t { kParameter = 0, kBuffer = 1, kOptimizerState = 2, kLoader = 4 };

struct LogicalTensor {
  std::string name;  // native name (the Hugging Face layout), global layer numbers
  DType dtype;
  Shape global_shape;
  Role role = Role::kParameter;
};

// The box of a logical tensor that this rank holds.
struct Piece {
  LogicalTensor logical;
  Box box;
  Tensor data;  // box.length elements, row-major
  // If the memory of `data` has gaps (pieces_to_write): for each dim, the elements from one index
  // to the next.  0-d: no gaps.
  Shape strides{};
};

enum class OptimizerKind : uint8_t { kAdamW, kMuon };

// The part of a trained tensor that this rank keeps, as the optimizer sees it.
//
// The rank's model holds `boxes` of the logical tensor, one after another in memory (one box,
// unless tensor parallelism cut the tensor in several places).  Of their elements, laid end to end,
// the rank keeps [begin, end): all of them, unless ZeRO shards them.  A tensor may come in several
// parameters.
struct Parameter {
  LogicalTensor logical;
  std::vector<Box> boxes;
  int64_t begin = 0, end = 0;
  Tensor value, gradient;  // fp32 (fp64 in the fp64 run); end - begin elements
  OptimizerKind kind = OptimizerKind::kAdamW;
  bool decay = false;
  // For Muon: the matrices inside the logical tensor, each orthogonalised alone.  Dim 0 is cut into
  // num_matrices, such as the experts of a stack.
  int64_t num_matrices = 1;
  int64_t halves = 1;  // 2: each matrix is two, one above the other, that may be separated
  // num_copies ranks keep the same elements, and this one is number `copy` of them.  Parameters
  // with equal num_copies and `keepers` are kept by the same ranks.
  int copy = 0, num_copies = 1, keepers = 0;
  // The extents of the elements of all boxes together, as they lie in memory; this defines rows.
  Shape local_shape{};
};

// One matrix of a Muon parameter.
struct MatrixShape {
  int64_t rows, cols;
  int64_t numel() const { return rows * cols; }
};
// The logical tensor consists of num_matrices of them, one after another.
MatrixShape matrix_shape(const Shape& global_shape, int64_t num_matrices);
inline MatrixShape matrix_shape(const Parameter& p) {
  return matrix_shape(p.logical.global_shape, p.num_matrices);
}

}  // namespace ashlar
