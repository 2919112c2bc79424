// The counting allocator, for this program too.
#include "tests/support/malloc_count.cpp"
