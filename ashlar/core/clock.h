// Time that passes: of a clock that never goes back, whatever the date of the machine does.
#pragma once

#include <chrono>

namespace ashlar {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace ashlar
