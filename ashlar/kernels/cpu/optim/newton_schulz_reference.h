// Newton-Schulz by the plain reference, one matrix after the other; fp64, or where it is asked for.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels::cpu::newton_schulz {

inline constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kTiny = 1e-7;

// In fp64, in an order that depends on the length only.  T: float or double.
template <typename T>
double sum_of_squares(const T* x, int64_t count);

void orthogonalize_reference(const Context& ctx, DType compute, const Tensor& x_GMN, int steps);

}  // namespace ashlar::kernels::cpu::newton_schulz
