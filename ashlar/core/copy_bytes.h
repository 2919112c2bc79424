// Copies as memcpy does, at one speed whatever the addresses.  From a few KiB on glibc uses an
// instruction (rep movsb) that some AMD cores run three times slower when source and target have
// the same offset in their pages, as rows of matrices whose width is a power of two do.
#pragma once

#include <cstddef>

namespace ashlar {

// The ranges must not overlap.
void copy_bytes(void* to, const void* from, size_t bytes);

// For large amounts that are not read again soon.  Writes bypass the caches where the processor can
// do so; memory then moves two thirds of the bytes, because lines that will be overwritten are not
// fetched.  Another thread may read the target after the writer has called finish_streaming().
void stream_bytes(void* to, const void* from, size_t bytes);
void finish_streaming();

}  // namespace ashlar
