// Elements of floating-point tensors as doubles.
#pragma once

#include <cstdint>
#include <vector>

#include "ashlar/tensor/tensor.h"

namespace ashlar::testing_support {

inline double get(const Tensor& t, int64_t i) {
  if (t.dtype == DType::kBF16) return t.as<bf16>()[i];
  return t.dtype == DType::kF64 ? t.as<double>()[i] : double(t.as<float>()[i]);
}
inline void set(const Tensor& t, int64_t i, double value) {
  if (t.dtype == DType::kBF16) return void(t.as<bf16>()[i] = bf16(float(value)));
  t.dtype == DType::kF64 ? void(t.as<double>()[i] = value) : void(t.as<float>()[i] = float(value));
}
inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  for (int64_t i = 0; i < t.numel(); ++i) values.push_back(get(t, i));
  return values;
}

}  // namespace ashlar::testing_support
