#include "ashlar/core/aligned_memory.h"

#include <sys/mman.h>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"

namespace ashlar {

AlignedMemory aligned_memory(int64_t bytes, std::string_view what) {
  constexpr int64_t kHugePage = int64_t(2) << 20;
  const int64_t alignment = bytes >= kHugePage ? kHugePage : File::kDirectBytes;
  const int64_t size = (bytes + alignment - 1) / alignment * alignment;
  AlignedMemory memory(
      static_cast<std::byte*>(std::aligned_alloc(size_t(alignment), size_t(size))));
  ASHLAR_REQUIRE(memory, kMemory, "{} bytes for {} were refused by the system", bytes, what);
  if (bytes >= kHugePage) madvise(memory.get(), size_t(size), MADV_HUGEPAGE);  // a hint
  return memory;
}

}  // namespace ashlar
