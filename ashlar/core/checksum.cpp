#include "ashlar/core/checksum.h"

#include <xxhash.h>

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace ashlar {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // Castagnoli, bit 31 is x^0

using ByteTable = std::array<uint32_t, 256>;

// tables[k][b]: the state after byte b and k zero bytes, from state 0.
constexpr std::array<ByteTable, 8> make_slicing_tables() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t state = b;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (state & 1 ? kPolynomial : 0);
    tables[0][b] = state;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b)
      tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
  return tables;
}
constexpr auto kTables = make_slicing_tables();

// a * b mod the polynomial.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 * bytes): multiplying a state by it appends that many zero bytes.
constexpr uint32_t zero_bytes(uint64_t bytes) {
  uint32_t power = 0x80000000u, square = 0x00800000u;  // x^0 and x^8
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) power = multiply(power, square);
    square = multiply(square, square);
  }
  return power;
}

uint32_t update_portable(uint32_t state, const std::byte* data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word = 0;
    for (int k = 7; k >= 0; --k) word = word << 8 | static_cast<uint8_t>(data[k]);
    word ^= state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) state ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; size > 0; --size, ++data)
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint8_t>(*data)) & 255];
  return state;
}

#if defined(__x86_64__)

// The instruction takes three cycles and starts every cycle: three streams of this length run at
// once and are joined by shifting the earlier ones over the later ones.  The processor's prefetcher
// does not recognise such short streams as one, so the loop prefetches this far ahead itself.
constexpr size_t kStream = 2048;
constexpr size_t kAhead = 12 * kStream;
constexpr size_t kLine = 64;

constexpr std::array<ByteTable, 4> make_shift_tables(size_t bytes) {
  std::array<ByteTable, 4> tables{};
  const uint32_t power = zero_bytes(bytes);
  for (uint32_t k = 0; k < 4; ++k)
    for (uint32_t b = 0; b < 256; ++b) tables[k][b] = multiply(power, b << (8 * k));
  return tables;
}
constexpr auto kShift = make_shift_tables(kStream);

uint32_t shift_stream(uint32_t state) {
  return kShift[0][state & 255] ^ kShift[1][(state >> 8) & 255] ^ kShift[2][(state >> 16) & 255] ^
         kShift[3][state >> 24];
}

inline uint64_t load_word(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t update_hardware(uint32_t state, const std::byte* data,
                                                           size_t size) {
  for (; size >= 3 * kStream; size -= 3 * kStream, data += 3 * kStream) {
    uint64_t a = state, b = 0, c = 0;
    for (size_t line = 0; line < kStream; line += kLine) {
      for (size_t i = 0; i < 3; ++i)  // past the end this does nothing
        __builtin_prefetch(data + kAhead + 3 * line + i * kLine);
      for (size_t i = line; i < line + kLine; i += 8) {
        a = _mm_crc32_u64(a, load_word(data + i));
        b = _mm_crc32_u64(b, load_word(data + kStream + i));
        c = _mm_crc32_u64(c, load_word(data + 2 * kStream + i));
      }
    }
    const uint32_t ab = shift_stream(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    state = shift_stream(ab) ^ static_cast<uint32_t>(c);
  }
  for (; size >= 8; size -= 8, data += 8)
    state = static_cast<uint32_t>(_mm_crc32_u64(state, load_word(data)));
  for (; size > 0; --size, ++data) state = _mm_crc32_u8(state, static_cast<uint8_t>(*data));
  return state;
}

#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2"))
    return ~update_hardware(~previous, bytes.data(), bytes.size());
#endif
  return crc32c_portable(bytes, previous);
}

uint32_t crc32c(std::string_view text, uint32_t previous) {
  return crc32c(std::as_bytes(std::span(text)), previous);
}

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous) {
  return ~update_portable(~previous, bytes.data(), bytes.size());
}

uint64_t xxh3_64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::array<uint8_t, 16> xxh3_128(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return std::to_array(canonical.digest);
}

}  // namespace ashlar
