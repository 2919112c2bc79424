// Tensors as the structs of launch.h hold them.
#pragma once

#include <initializer_list>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/linear.h"
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
inline device::Elements elements(const Matrix& m) {
  ASHLAR_ASSERT(m.dtype == DType::kF32 || m.dtype == DType::kBF16);
  return any_elements(m);
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

inline int64_t* wide_ints(const Tensor& t) {
  ASHLAR_ASSERT(t.dtype == DType::kI64);
  return reinterpret_cast<int64_t*>(t.data);
}

inline bool begins_at_vector(const void* data) {
  constexpr uintptr_t kVectorBytes = 16;
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}
inline constexpr int64_t kVectorElements = 8;  // a multiple of those of any type
// Whether rows of this width, one after another in each tensor, can be read 16 bytes at a time.
inline bool by_vectors(int64_t width, std::initializer_list<Tensor> tensors) {
  bool fit = width % kVectorElements == 0;
  for (const Tensor& t : tensors) fit &= begins_at_vector(t.data);
  return fit;
}
inline bool by_vectors(const Matrix& m) {
  return m.cols % kVectorElements == 0 && m.stride % kVectorElements == 0 &&
         begins_at_vector(m.data);
}

// The weights as a product of this type reads them.
inline Tensor weights_of(const Operand& w, DType compute) {
  if (compute == DType::kF32) return w.w;
  ASHLAR_ASSERT(w.forward.dtype == DType::kBF16 && w.forward.numel() == w.w.numel());
  return w.forward.view(w.w.shape);
}

// Raises what a launch returned.
inline void check_launch(const std::string& error) {
  ASHLAR_REQUIRE(error.empty(), kDevice, "a kernel did not run: {}", error);
}

// Launches a kernel and raises what went wrong; on meta it is only counted.
template <typename Kernel>
void launch(const Context& ctx, const Kernel& kernel) {
  if constexpr (requires { kernel.num_kernels(); })
    ctx.count_launches(kernel.num_kernels());
  else
    ctx.count_launches(1);
  if (!ctx.meta()) check_launch(device::launch(kernel));
}

// How many partial sums kernels make over this many rows.
inline int64_t num_partials(int64_t rows) {
  return ceil_div(rows, int64_t(device::kPartialRows));
}
// Adds partial sums, rows of the gradient's elements, to the gradient, in order.
inline void add_partials(const Context& ctx, const Tensor& partials, const Tensor& gradient) {
  launch(ctx, device::SumPartials{.partials = floats(partials),
                                  .to = floats(gradient),
                                  .rows = partials.numel() / gradient.numel(),
                                  .width = gradient.numel()});
}

}  // namespace ashlar::kernels::gpu
