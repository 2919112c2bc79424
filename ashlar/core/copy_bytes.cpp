#include "ashlar/core/copy_bytes.h"

#include <algorithm>
#include <cstring>

namespace ashlar {

void copy_bytes(void* to, const void* from, size_t bytes) {
  size_t piece = 512;     // which memcpy moves with vector instructions everywhere
  asm("" : "+r"(piece));  // else the compiler knows it, and makes an instruction of its own choice
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += piece)
    std::memcpy(target + at, source + at, std::min(piece, bytes - at));
}

}  // namespace ashlar
