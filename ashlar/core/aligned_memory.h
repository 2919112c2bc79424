// Host memory aligned for File::read_direct and write_direct.  Buffers of 2 MiB and more use huge
// pages where the system has them: a direct call then takes few requests of the disk instead of
// many, and the first touch causes 512 times fewer page faults.
//
// Errors   kMemory "N bytes for WHAT were refused by the system".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace ashlar {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeMemory>;

// The bytes are not initialised.
AlignedMemory aligned_memory(int64_t bytes, std::string_view what);

}  // namespace ashlar
