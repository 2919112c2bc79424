// Activations of one element, for the plain references; simd/vector_math-inl.h has them on vectors.
#pragma once

#include <algorithm>
#include <cmath>

namespace ashlar::kernels::cpu {

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// log(1 + e^x), which is -logsigmoid(-x); its slope is sigmoid(x).
template <typename T>
T softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

// A function of an element and its derivative there.
template <typename T>
struct Activated {
  T value, slope;
};

// x sigmoid(x).
template <typename T>
Activated<T> silu(T x) {
  const T sigma = sigmoid(x);
  return {x * sigma, sigma * (T(1) + x * (T(1) - sigma))};
}

}  // namespace ashlar::kernels::cpu
