#include "ashlar/nn/parameters.h"

namespace ashlar::nn {

Types Types::of(DType compute) {
  if (compute == DType::kF64) return {DType::kF64, DType::kF64, DType::kF64};
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  return {DType::kF32, compute, compute};
}

DType auto_compute() {
  return kernels::isa() >= kernels::Isa::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
}

}  // namespace ashlar::nn
