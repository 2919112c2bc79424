#include "ashlar/cli/stdin_text.h"

#include <cstdio>

#include "ashlar/core/error.h"

namespace ashlar::cli {
namespace {

// Appends what comes up to `end` (EOF: all); whether that character came.
bool read_until(int end, std::string& text) {
  for (int c; (c = std::getc(stdin)) != EOF;) {
    if (c == end) return true;
    ASHLAR_REQUIRE(int64_t(text.size()) < kMaxStdinBytes, kData, "stdin has more than {} bytes",
                   kMaxStdinBytes);
    text += char(c);
  }
  ASHLAR_REQUIRE(!std::ferror(stdin), kStorage, "stdin cannot be read");
  return false;
}

}  // namespace

std::string read_stdin() {
  std::string text;
  read_until(EOF, text);
  return text;
}

bool read_stdin_line(std::string& line) {
  line.clear();
  return read_until('\n', line) || !line.empty();
}

}  // namespace ashlar::cli
