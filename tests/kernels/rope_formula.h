// RoPE after its definition, in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace ashlar::kernels {

constexpr double kTheta = 100;

// x turned by the angles of a position: element i < rotary_dim / 2 with its partner that far on.
inline std::vector<double> turned(const std::vector<double>& x, int64_t rotary_dim,
                                  int64_t position) {
  std::vector<double> result = x;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double angle = double(position) * std::pow(kTheta, -2.0 * double(i) / double(rotary_dim));
    const auto a = size_t(i), b = size_t(i + rotary_dim / 2);
    result[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
    result[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
  }
  return result;
}

}  // namespace ashlar::kernels
