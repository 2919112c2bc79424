// A hash that shows two machines that their copies of a large file differ, without reading the
// whole file.  It covers the size and 64 blocks of 4 KiB spread evenly over the file, including the
// first and the last; a file of 256 KiB or less is read whole.  Copies that differ only between the
// blocks have the same hash.
//
// Errors   as File.
#pragma once

#include <cstdint>

#include "ashlar/core/files.h"

namespace ashlar {

uint64_t sample_hash(const File& file);

}  // namespace ashlar
