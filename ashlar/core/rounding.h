// Division of sizes that rounds up.
#pragma once

#include <cstdint>

namespace ashlar {

// For value >= 0 and unit > 0.
constexpr int64_t ceil_div(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit;
}
// The smallest multiple of `unit` that is not below `value`.
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace ashlar
