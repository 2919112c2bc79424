// What lasts, by name: logical tensors in global coordinates, and model state as parameters.
#pragma once

#include <string>

#include "ashlar/tensor/tensor.h"

namespace ashlar {

enum class Role : uint8_t { kParameter, kBuffer, kOptimizerState, kScale, kLoader, kRng, kScalar };

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
};

enum class OptimizerKind : uint8_t { kAdamW, kMuon };

// A trained tensor: what the optimizer sees.
struct Parameter {
  LogicalTensor logical;
  Box box;
  Tensor value, gradient;  // fp32 (fp64 in the fp64 run), box.length
  OptimizerKind kind = OptimizerKind::kAdamW;
  bool decay = false;
  // Muon: the matrices inside `value`, each orthogonalised alone.  Dim 0 is cut into num_matrices
  // (the experts of a stack; twice as many when gate and up are taken apart).
  int64_t num_matrices = 1;
};

}  // namespace ashlar
