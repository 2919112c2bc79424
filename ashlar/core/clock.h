// Elapsed time on a clock that never goes back, even if the machine's date is set.
#pragma once

#include <chrono>

namespace ashlar {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace ashlar
