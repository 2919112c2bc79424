// Error raising where the kind is a value: the same parser serves our own checkpoints (kCorrupt)
// and foreign model directories (kData).
#pragma once

#include <fmt/core.h>

#include <utility>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {

template <typename... Args>
[[noreturn]] void raise(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ashlar::checkpoint
