#include <cstring>
#include <vector>

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/core/checksum.h"
#include "tests/fuzz/fuzz.h"

namespace {

uint64_t number(const std::vector<std::byte>& bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= std::to_integer<uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}
void put_crc(std::vector<std::byte>& bytes, size_t at, uint32_t crc) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = std::byte(crc >> (8 * i));
}

// Makes the checksums right, or no mutation would get past them.
void reseal(std::vector<std::byte>& bytes) {
  if (bytes.size() < 64) return;
  const uint64_t rows = std::min<uint64_t>(number(bytes, 40, 4), (bytes.size() - 64) / 32);
  for (uint64_t row = 64; row < 64 + rows * 32; row += 32) {
    const uint64_t element = number(bytes, row + 4, 4), offset = number(bytes, row + 8, 8);
    const uint64_t count = number(bytes, row + 16, 8);
    if (offset > bytes.size() || (element && count > (bytes.size() - offset) / element)) continue;
    put_crc(bytes, row + 24, ashlar::crc32c(std::span(bytes).subspan(offset, element * count)));
  }
  put_crc(bytes, 44, 0);
  put_crc(bytes, 44, ashlar::crc32c(std::span(bytes).first(64 + rows * 32)));
}

}  // namespace

// An accepted index is exactly what the builder writes, but for versions, flags and unknown
// sections.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ashlar;
  using namespace ashlar::checkpoint;
  std::vector<std::byte> bytes(as_bytes_of(data, size).begin(), as_bytes_of(data, size).end());
  reseal(bytes);
  return expect_error_or_success([&] {
    const std::vector<std::byte> once = build_index(parse_index(bytes, "fuzz"));
    ASHLAR_ASSERT(build_index(parse_index(once, "fuzz")) == once);
  });
}
