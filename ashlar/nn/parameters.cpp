#include "ashlar/nn/parameters.h"

#include "ashlar/kernels/peak.h"

namespace ashlar::nn {

Piece whole_piece(const ParameterInfo& info, const Tensor& tensor) {
  return {{info.name, tensor.dtype, tensor.shape, info.buffer ? Role::kBuffer : Role::kParameter},
          Box::whole(tensor.shape),
          tensor};
}

Types Types::of(DType compute) {
  if (compute == DType::kF64) return {DType::kF64, DType::kF64, DType::kF64};
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  return {DType::kF32, compute, compute};
}

DType auto_compute() {
  return kernels::bf16_is_faster() ? DType::kBF16 : DType::kF32;
}

}  // namespace ashlar::nn
