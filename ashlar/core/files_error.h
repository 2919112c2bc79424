// The wording of errors of this module's file systems.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "ashlar/core/files.h"

namespace ashlar {

// "write /x/y: No space left on device (after 4096 of 9000 bytes)"; `detail` is the part from " (".
[[noreturn]] inline void fail_storage(std::string_view operation, const std::string& path,
                                      int number, std::string_view detail = "") {
  throw StorageError(number, fmt::format("{} {}: {}{}", operation, path,
                                         std::generic_category().message(number), detail));
}

[[noreturn]] inline void fail_short_read(const std::string& path, size_t wanted, int64_t offset,
                                         int64_t size) {
  throw StorageError(StorageError::kShortRead,
                     fmt::format("read {}: wanted {} bytes at offset {}, but the file has {} bytes",
                                 path, wanted, offset, size));
}

}  // namespace ashlar
