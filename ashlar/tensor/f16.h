// IEEE half precision as a storage type: 11 bits of precision, at most 65504, subnormals down to
// 2^-24.
#pragma once

#include <bit>
#include <cstdint>

#include "ashlar/tensor/dtype.h"

namespace ashlar {

// Every f16 is a float.  A conversion to f16 rounds once, to nearest even; values of 65520 or more
// become infinite; a NaN stays one and keeps the upper bits of its mantissa.
struct f16 {
  uint16_t bits;
  f16() = default;
  explicit f16(double value) {
    const auto u = std::bit_cast<uint64_t>(value);
    const int exponent = int(u >> 52 & 0x7ff) - 1023;
    const uint64_t mantissa = u & ((uint64_t{1} << 52) - 1);
    const auto sign = uint16_t(u >> 63 << 15);
    if (exponent == 1024) {
      const auto kept = uint16_t(mantissa >> 42);
      bits = uint16_t(sign | 0x7c00 | (mantissa == 0 ? 0 : kept == 0 ? 0x200 : kept));
    } else if (exponent > 15) {
      bits = uint16_t(sign | 0x7c00);
    } else {
      // The unit in the last remaining place: 2^(exponent - 10), or 2^-24 for a subnormal.
      const int dropped = exponent >= -14 ? 42 : 28 - exponent;
      const uint64_t whole = mantissa | uint64_t{1} << 52;
      uint64_t kept = 0;
      if (dropped <= 54) {
        const uint64_t rest = whole & ((uint64_t{1} << dropped) - 1);
        const uint64_t half = uint64_t{1} << (dropped - 1);
        kept = whole >> dropped;
        kept += rest > half || (rest == half && (kept & 1) != 0);
      }
      // A carry goes into the exponent, which is correct.
      const uint64_t base = exponent >= -14 ? uint64_t(exponent + 14) << 10 : 0;
      bits = uint16_t(sign | (base + kept));
    }
  }
  operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
      const float magnitude = float(mantissa) * 0x1p-24f;
      return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  }
};
static_assert(sizeof(f16) == 2);

template <>
inline constexpr DType dtype_of<f16> = DType::kF16;

}  // namespace ashlar
