// Characters that Unicode 15 to 17 added, for libraries that know an earlier version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::data {

struct UnicodeAddition {
  uint32_t first, last;
  const char* category;  // general category: "Lo"
  int version;           // 16: that of Unicode 15, 15.1 or 16; 17
};

extern const UnicodeAddition kUnicodeAdditions[];  // ascending
extern const size_t kNumUnicodeAdditions;

}  // namespace ashlar::data
