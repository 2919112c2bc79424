// Copies as memcpy does, at one speed wherever the bytes lie.  On some of AMD's cores glibc copies
// from a few KiB on with an instruction (rep movsb) that is three times slower where source and
// target lie alike in their pages, as rows of matrices of a power of two do.
#pragma once

#include <cstddef>

namespace ashlar {

// The ranges must not overlap.
void copy_bytes(void* to, const void* from, size_t bytes);

// For much that is not read soon.  What is written goes past the caches, where a processor can do
// so: memory moves two thirds of the bytes, as lines that are to be overwritten are not fetched.
// Another thread may read it after finish_streaming() by the thread that wrote it.
void stream_bytes(void* to, const void* from, size_t bytes);
void finish_streaming();

}  // namespace ashlar
