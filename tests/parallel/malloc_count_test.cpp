// The counting allocator, for this program too.
#include "../train/malloc_count_test.cpp"
