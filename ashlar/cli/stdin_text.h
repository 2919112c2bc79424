// Text that comes through stdin.
//
// Errors  kData for more than kMaxStdinBytes; kStorage if it cannot be read.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar::cli {

inline constexpr int64_t kMaxStdinBytes = int64_t{64} << 20;

std::string read_stdin();  // all of it
// The next line, without its end; false: there is none.
bool read_stdin_line(std::string& line);

}  // namespace ashlar::cli
