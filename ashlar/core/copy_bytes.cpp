#include "ashlar/core/copy_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ashlar {

void copy_bytes(void* to, const void* from, size_t bytes) {
  size_t piece = 512;     // memcpy moves this much with vector instructions on every processor
  asm("" : "+r"(piece));  // hides the size, or the compiler would choose an instruction itself
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += piece)
    std::memcpy(target + at, source + at, std::min(piece, bytes - at));
}

#if defined(__x86_64__)

// Writes to one cache line leave the processor together, even from several calls, so only the ends
// need a copy.
void stream_bytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kUnit = sizeof(__m128i);
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const auto copy_few = [&](size_t count) {
    for (; count > 0; --count) *target++ = *source++;
  };
  const size_t before = std::min(bytes, size_t(-reinterpret_cast<uintptr_t>(to)) % kUnit);
  copy_few(before);
  bytes -= before;
  for (; bytes >= 4 * kUnit; bytes -= 4 * kUnit, target += 4 * kUnit, source += 4 * kUnit) {
    const auto* units = reinterpret_cast<const __m128i*>(source);
    auto* place = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(units), b = _mm_loadu_si128(units + 1);
    const __m128i c = _mm_loadu_si128(units + 2), d = _mm_loadu_si128(units + 3);
    _mm_stream_si128(place, a);
    _mm_stream_si128(place + 1, b);
    _mm_stream_si128(place + 2, c);
    _mm_stream_si128(place + 3, d);
  }
  for (; bytes >= kUnit; bytes -= kUnit, target += kUnit, source += kUnit)
    _mm_stream_si128(reinterpret_cast<__m128i*>(target),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  copy_few(bytes);
}

void finish_streaming() {
  _mm_sfence();
}

#else

void stream_bytes(void* to, const void* from, size_t bytes) {
  copy_bytes(to, from, bytes);
}

void finish_streaming() {}

#endif

}  // namespace ashlar
