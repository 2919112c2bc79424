#include "ashlar/nn/precision.h"

#include <cstddef>

#include "ashlar/core/error.h"
#include "ashlar/kernels/peak.h"

namespace ashlar::nn {

Types Types::of(DType compute, StreamType stream) {
  const bool narrow = stream == StreamType::kBF16;
  ASHLAR_REQUIRE(!narrow || compute == DType::kBF16, kConfig,
                 "train.stream is bf16 but the products of this run are {}; choose "
                 "train.precision=bf16, or train.stream=fp32",
                 precision_name(compute));
  if (compute == DType::kF64) return {DType::kF64, DType::kF64, DType::kF64, DType::kF64};
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  return {narrow ? DType::kBF16 : DType::kF32, DType::kF32, compute, compute};
}

DType auto_compute() {
  return kernels::bf16_is_faster() ? DType::kBF16 : DType::kF32;
}

DType resolve_precision(Precision precision) {
  switch (precision) {
    case Precision::kBF16:
      return DType::kBF16;
    case Precision::kF32:
      return DType::kF32;
    case Precision::kF64:
      return DType::kF64;
    case Precision::kAuto:
      break;
  }
  return auto_compute();
}

Precision precision_of(DType compute) {
  return compute == DType::kBF16  ? Precision::kBF16
         : compute == DType::kF32 ? Precision::kF32
                                  : Precision::kF64;
}

std::string_view precision_name(DType compute) {
  return kPrecisionNames[size_t(precision_of(compute))];
}

DType parse_precision(std::string_view word) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (word == kPrecisionNames[i]) return resolve_precision(Precision(i));
  ASHLAR_FAIL(kConfig, "--dtype is {}; expected auto, bf16, fp32 or fp64", word);
}

}  // namespace ashlar::nn
