// The two clocks of a launch, in seconds.
#pragma once

#include <chrono>

#include "ashlar/core/clock.h"

namespace ashlar::launch {

// A clock that never goes back, by which a launcher decides.
inline double now_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}
// Seconds since 1970, for files.
inline double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace ashlar::launch
