// Shared by all fuzz targets: an Error is a fine answer, anything else is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ashlar/core/error.h"

namespace ashlar {

inline std::span<const std::byte> as_bytes_of(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}
inline std::string_view as_text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

template <typename F>
int expect_error_or_success(F&& body) {
  try {
    body();
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace ashlar
