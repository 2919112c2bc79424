// Counts every allocation of this program, those of libraries included: malloc_count.cpp, which one
// source of the program includes, puts itself before the C library's allocator.
#pragma once

#include <cstdint>

namespace ashlar::testing_support {

bool counts_mallocs();  // false in sanitizer builds, which own the allocator
int64_t num_mallocs();  // of all threads, since the start

}  // namespace ashlar::testing_support
