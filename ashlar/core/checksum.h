// CRC32C (Castagnoli, reflected, initial and final xor 0xFFFFFFFF) and XXH3 of bytes.
// crc32c("123456789") == 0xE3069283.  Uses the SSE4.2 instruction where the CPU has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ashlar {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);
uint32_t crc32c(std::string_view text, uint32_t previous = 0);
// The same by tables, which crc32c uses on a CPU without the instruction.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous = 0);
uint64_t xxh3_64(std::span<const std::byte> bytes);
std::array<uint8_t, 16> xxh3_128(std::span<const std::byte> bytes);  // in canonical byte order

}  // namespace ashlar
