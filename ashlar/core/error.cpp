#include "ashlar/core/error.h"

#include <cstdio>
#include <cstdlib>

namespace ashlar {

void fail_assertion(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal error: %s is false\n", file, line, condition);
  std::abort();
}

}  // namespace ashlar
