// A rank that may hold up a run, as the kernel and the rank itself describe it.
#pragma once

#include <string>

#include "ashlar/core/pulse.h"

namespace ashlar::launch {

// "rank 1 is in state S; kernel: ...; stack: ...".  Waits up to half a second for the rank's answer
// (core/stack_note.h).
std::string describe_suspect(const PulsePage& page, const std::string& run_directory);

}  // namespace ashlar::launch
