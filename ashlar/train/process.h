// Facts about this process.
#pragma once

namespace ashlar::train {

// Seconds since the kernel started this process, to 10 ms.
double process_age_s();

}  // namespace ashlar::train
