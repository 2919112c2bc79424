#include "tests/support/malloc_count.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

std::atomic<int64_t> calls{0};

}  // namespace

namespace ashlar::testing_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool counts_mallocs() {
  return false;
}
#else
bool counts_mallocs() {
  return true;
}
#endif
int64_t num_mallocs() {
  return calls;
}

}  // namespace ashlar::testing_support

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// The names under which glibc offers its own.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  ++calls;
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  ++calls;
  return __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) {
  ++calls;
  return __libc_realloc(old, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  ++calls;
  return __libc_memalign(alignment, size);
}

void* memalign(size_t alignment, size_t size) {
  ++calls;
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  ++calls;
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
}

#endif
