// What the contracts of kernels (kernels/X.cpp) check and count alike.  Knows no device.
#pragma once

#include <initializer_list>

#include "ashlar/core/error.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::kernels {

inline bool is_stream(DType dtype) {  // the stream, its parameters and statistics
  return dtype == DType::kF64 || dtype == DType::kF32;
}
inline bool is_real(DType dtype) {  // what meets products
  return is_stream(dtype) || dtype == DType::kBF16;
}

inline int64_t bytes_of(std::initializer_list<Tensor> tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors) sum += t.bytes();
  return sum;
}

}  // namespace ashlar::kernels
