// Facts about this process.
#pragma once

#include <optional>

namespace ashlar {

// Seconds since the kernel started this process, to 10 ms; nullopt where /proc does not tell.
std::optional<double> process_age_s();

}  // namespace ashlar
