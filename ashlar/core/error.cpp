#include "ashlar/core/error.h"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace ashlar {

void fail_assertion(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal error: %s is false\n", file, line, condition);
  std::abort();
}

Report report_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  } catch (const std::bad_alloc&) {
    return {int(ErrorKind::kMemory),
            "no memory left; ask for less, or raise the limit (ulimit -v, a container's)"};
  } catch (const std::exception& e) {
    return {kBugExitCode, fmt::format("internal error: {}", e.what())};
  } catch (...) {
    return {kBugExitCode, "internal error: an exception of unknown type"};
  }
}

}  // namespace ashlar
