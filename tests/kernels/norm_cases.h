// Sizes that every kernel of the norms is tried on.
#pragma once

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {

inline constexpr double kEps = 1e-5;

struct NormCase {
  int64_t T, H;
};
inline constexpr NormCase kNormCases[] = {{1, 1},   {1, 8},     {3, 5},   {17, 33},
                                          {65, 64}, {130, 256}, {64, 300}};
inline std::string name_of(const NormCase& c) {
  return fmt::format("T={} H={}", c.T, c.H);
}

}  // namespace ashlar::kernels
