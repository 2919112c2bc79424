#include "ashlar/core/aligned_memory.h"

#include "ashlar/core/error.h"

namespace ashlar {

AlignedMemory aligned_memory(int64_t bytes, int64_t alignment, std::string_view what) {
  const int64_t size = (bytes + alignment - 1) / alignment * alignment;
  AlignedMemory memory(
      static_cast<std::byte*>(std::aligned_alloc(size_t(alignment), size_t(size))));
  ASHLAR_REQUIRE(memory, kMemory, "{} bytes for {} were refused by the system", bytes, what);
  return memory;
}

}  // namespace ashlar
