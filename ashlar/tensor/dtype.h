// Element types, and bf16 as a storage type.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace ashlar {

enum class DType : uint8_t {
  kF64,
  kF32,
  kBF16,
  kF16,
  kI64,
  kI32,
  kI16,
  kU16,
  kU8,
  kI8,
  kBool,
  kU32,
  kU64
};

int64_t size_of(DType dtype);           // bytes of one element
std::string_view name_of(DType dtype);  // "F32", as safetensors names it

// The upper half of an IEEE float.  Conversion rounds to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    u += 0x7fffu + ((u >> 16) & 1u);
    bits = nan ? uint16_t((std::bit_cast<uint32_t>(value) >> 16) | 0x40u) : uint16_t(u >> 16);
  }
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

template <typename T>
inline constexpr DType dtype_of = [] { static_assert(sizeof(T) == 0, "no DType for this type"); }();
template <>
inline constexpr DType dtype_of<double> = DType::kF64;
template <>
inline constexpr DType dtype_of<float> = DType::kF32;
template <>
inline constexpr DType dtype_of<bf16> = DType::kBF16;
template <>
inline constexpr DType dtype_of<int64_t> = DType::kI64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::kI32;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::kU16;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::kU8;

}  // namespace ashlar
