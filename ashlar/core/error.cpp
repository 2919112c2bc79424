#include "ashlar/core/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "ashlar/core/text.h"

namespace ashlar {

Error::Error(ErrorKind kind, std::string_view message, std::string_view further_lines)
    : std::runtime_error(further_lines.empty()
                             ? printable(message)
                             : fmt::format("{}\n{}", printable(message),
                                           printable(further_lines, NewLines::kKeep))),
      kind_(kind) {}

std::string_view Error::first_line() const {
  const std::string_view all = what();
  return all.substr(0, all.find('\n'));
}

std::string_view Error::further_lines() const {
  const std::string_view all = what();
  return all.substr(std::min(all.size(), first_line().size() + 1));
}

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
    return {kBugExitCode, printable(fmt::format("internal error: {}", e.what()))};
  } catch (...) {
    return {kBugExitCode, "internal error: an exception of unknown type"};
  }
}

}  // namespace ashlar
