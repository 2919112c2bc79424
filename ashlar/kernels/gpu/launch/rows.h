// Launches of kernels/gpu: what kernels over rows share.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

inline constexpr int64_t kMaxRowWidth = 8192;  // of kernels that hold a row in registers
inline constexpr int kPartialRows = 64;        // of which a partial sum is made

// to [width] += the sum over rows, in order, of partials [rows, width]; overwrites: to = that sum.
struct SumPartials {
  const float* partials;
  float* to;
  int64_t rows, width;
  bool overwrites = false;
};
std::string launch(const SumPartials&);

}  // namespace ashlar::device
