// A hash by which two machines find out, without reading them whole, that their copies of a large
// file are different ones: of its size and of 64 blocks of 4 KiB spread evenly over it, the first
// and the last among them; a file of 256 KiB or less is read whole.  Copies that differ in a few
// places between the blocks have the same hash.
//
// Errors   those of File.
#pragma once

#include <cstdint>

#include "ashlar/core/files.h"

namespace ashlar {

uint64_t sample_hash(const File& file);

}  // namespace ashlar
