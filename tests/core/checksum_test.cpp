#include "ashlar/core/checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ashlar {
namespace {

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t x = 12345;
  for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
  return bytes;
}

// One bit at a time, straight from the definition.
uint32_t crc32c_by_bits(std::span<const std::byte> bytes) {
  uint32_t state = 0xFFFFFFFFu;
  for (const std::byte b : bytes) {
    state ^= static_cast<uint8_t>(b);
    for (int bit = 0; bit < 8; ++bit) state = state & 1 ? (state >> 1) ^ 0x82F63B78u : state >> 1;
  }
  return ~state;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, ascending.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
}

TEST(Crc32c, BothVersionsEqualTheDefinitionForEveryLengthAndAlignment) {
  const std::vector<std::byte> bytes = pattern(20000);
  const std::span<const std::byte> all(bytes);
  for (const size_t size : {0, 1, 7, 8, 9, 63, 1000, 6143, 6144, 6145, 12288, 19000}) {
    for (const size_t start : {0, 1, 3, 7}) {
      const auto part = all.subspan(start, size);
      const uint32_t expected = crc32c_by_bits(part);
      EXPECT_EQ(crc32c(part), expected) << size << " bytes from " << start;
      EXPECT_EQ(crc32c_portable(part), expected) << size << " bytes from " << start;
    }
  }
}

TEST(Crc32c, Continues) {
  const std::vector<std::byte> bytes = pattern(9001);
  const std::span<const std::byte> all(bytes);
  const uint32_t whole = crc32c(all);
  for (const size_t cut : {0, 1, 5, 4096, 9000, 9001}) {
    const uint32_t a = crc32c(all.first(cut));
    EXPECT_EQ(crc32c(all.subspan(cut), a), whole);
    EXPECT_EQ(crc32c_portable(all.subspan(cut), a), whole);
  }
}

TEST(Xxh3, KnownValues) {
  EXPECT_EQ(xxh3_64({}), 0x2D06800538D394C2u);  // of the empty input, seed 0
  const std::vector<std::byte> bytes = pattern(1000);
  EXPECT_NE(xxh3_64(bytes), xxh3_64(std::span(bytes).first(999)));
  const std::array<uint8_t, 16> of_nothing{0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                           0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
  EXPECT_EQ(xxh3_128({}), of_nothing);
  EXPECT_NE(xxh3_128(bytes), xxh3_128(std::span(bytes).first(999)));
}

}  // namespace
}  // namespace ashlar
