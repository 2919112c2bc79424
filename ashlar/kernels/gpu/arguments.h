// Tensors as the structs of launch.h hold them.
#pragma once

#include <initializer_list>

#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/matrix.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::kernels::gpu {

inline device::ElementType element_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return device::ElementType::kF32;
    case DType::kBF16:
      return device::ElementType::kBF16;
    case DType::kF64:
      return device::ElementType::kF64;
    default:
      ASHLAR_ASSERT(dtype == DType::kI64);
      return device::ElementType::kI64;
  }
}

// Any type of the above.
inline device::Elements any_elements(const Matrix& m) {
  return {m.data, element_type(m.dtype)};
}
// F32 or BF16, or absent.
inline device::Elements elements(const Tensor& t) {
  if (!t) return {};
  ASHLAR_ASSERT(t.dtype == DType::kF32 || t.dtype == DType::kBF16);
  return {t.data, element_type(t.dtype)};
}
inline float* floats(const Tensor& t) {
  if (!t) return nullptr;
  ASHLAR_ASSERT(t.dtype == DType::kF32);
  return reinterpret_cast<float*>(t.data);
}

inline int32_t* ints(const Tensor& t) {
  if (!t) return nullptr;
  ASHLAR_ASSERT(t.dtype == DType::kI32);
  return reinterpret_cast<int32_t*>(t.data);
}

inline bool begins_at_vector(const void* data) {
  constexpr uintptr_t kVectorBytes = 16;
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}
// Whether rows of this width, one after another in each tensor, can be read 16 bytes at a time.
inline bool by_vectors(int64_t width, std::initializer_list<Tensor> tensors) {
  constexpr int64_t kElements = 8;
  bool fit = width % kElements == 0;
  for (const Tensor& t : tensors) fit &= begins_at_vector(t.data);
  return fit;
}

// Raises what a launch returned.
inline void check_launch(const std::string& error) {
  ASHLAR_REQUIRE(error.empty(), kDevice, "a kernel did not run: {}", error);
}

}  // namespace ashlar::kernels::gpu
