// Checks and counts shared by the contracts of kernels (kernels/X.cpp).  Knows no device.
#pragma once

#include <initializer_list>
#include <source_location>

#include "ashlar/core/error.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

inline bool is_stream(DType dtype) {  // the stream, its parameters and statistics
  return dtype == DType::kF64 || dtype == DType::kF32;
}
inline bool is_real(DType dtype) {  // inputs of products
  return is_stream(dtype) || dtype == DType::kBF16;
}

// Asserts shape and type of one tensor, and names the calling line if they are wrong.
inline void check_tensor(const Tensor& t, const Shape& shape, DType dtype,
                         std::source_location at = std::source_location::current()) {
  if (t.shape != shape || t.dtype != dtype)
    fail_assertion("t.shape == shape && t.dtype == dtype", at.file_name(), int(at.line()));
}
inline void check_real(const Tensor& t, const Shape& shape,
                       std::source_location at = std::source_location::current()) {
  if (t.shape != shape || !is_real(t.dtype))
    fail_assertion("t.shape == shape && is_real(t.dtype)", at.file_name(), int(at.line()));
}

inline int64_t bytes_of(std::initializer_list<Tensor> tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors) sum += t.bytes();
  return sum;
}
inline int64_t bytes_of(const Matrix& m) {
  return m.rows * m.cols * size_of(m.dtype);
}

}  // namespace ashlar::kernels
