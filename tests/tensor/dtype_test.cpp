#include "ashlar/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace ashlar {
namespace {

uint16_t rounded(float value) {
  return bf16(value).bits;
}
uint16_t rounded_bits(uint32_t bits) {
  return bf16(std::bit_cast<float>(bits)).bits;
}

TEST(DType, SizesAndNames) {
  struct Case {
    DType dtype;
    int64_t size;
    std::string name;
  };
  for (const Case& c :
       {Case{DType::kF64, 8, "F64"}, Case{DType::kF32, 4, "F32"}, Case{DType::kBF16, 2, "BF16"},
        Case{DType::kF16, 2, "F16"}, Case{DType::kI64, 8, "I64"}, Case{DType::kI32, 4, "I32"},
        Case{DType::kI16, 2, "I16"}, Case{DType::kU16, 2, "U16"}, Case{DType::kU8, 1, "U8"},
        Case{DType::kI8, 1, "I8"}, Case{DType::kBool, 1, "BOOL"}, Case{DType::kU32, 4, "U32"},
        Case{DType::kU64, 8, "U64"}}) {
    EXPECT_EQ(size_of(c.dtype), c.size) << c.name;
    EXPECT_EQ(name_of(c.dtype), c.name);
  }
  EXPECT_EQ(dtype_of<bf16>, DType::kBF16);
  EXPECT_EQ(dtype_of<int32_t>, DType::kI32);
}

TEST(Bf16, EveryValueSurvives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float wide = value;
    if (std::isnan(wide))
      EXPECT_TRUE(std::isnan(float(bf16(wide))));
    else
      EXPECT_EQ(bf16(wide).bits, bits);
  }
}

TEST(Bf16, TiesGoToEven) {
  EXPECT_EQ(rounded(1.0f), 0x3f80);
  EXPECT_EQ(rounded(1.0f + 0x1p-8f), 0x3f80);             // halfway, down to even
  EXPECT_EQ(rounded(1.0f + 3 * 0x1p-8f), 0x3f82);         // halfway, up to even
  EXPECT_EQ(rounded(1.0f + 0x1p-8f + 0x1p-23f), 0x3f81);  // just over
  EXPECT_EQ(rounded(1.0f + 3 * 0x1p-8f - 0x1p-23f), 0x3f81);
  EXPECT_EQ(rounded(-1.0f - 3 * 0x1p-8f), 0xbf82);
}

TEST(Bf16, NearestOfTheNeighboursEverywhere) {
  // Against the two neighbouring values by distance, over floats of all sizes.
  for (uint64_t step = 0; step < 0x7f800000u; step += 65537 * 3 + 11) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(step));
    const auto down_bits = static_cast<uint16_t>(step >> 16);
    bf16 down, up;
    down.bits = down_bits;
    up.bits = static_cast<uint16_t>(down_bits + 1);
    // The next after the largest is 2^128, as it would be without a bound.
    const double up_value = up.bits == 0x7f80 ? 0x1p128 : double(float(up));
    const double below = double(value) - double(float(down)), above = up_value - double(value);
    const bool goes_up = above < below || (above == below && (down_bits & 1));
    ASSERT_EQ(rounded(value), goes_up ? up.bits : down_bits) << value;
  }
}

TEST(Bf16, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(inf), 0x7f80);
  EXPECT_EQ(rounded(-inf), 0xff80);
  EXPECT_EQ(rounded(0.0f), 0x0000);
  EXPECT_EQ(rounded(-0.0f), 0x8000);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), 0x7f80);  // over the largest bf16
  EXPECT_EQ(rounded(std::numeric_limits<float>::denorm_min()), 0x0000);
  // No NaN becomes infinity or zero, whatever its payload, and the sign stays.
  for (const uint32_t nan : {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu})
    for (const uint32_t sign : {0u, 0x80000000u}) {
      bf16 result;
      result.bits = rounded_bits(nan | sign);
      EXPECT_TRUE(std::isnan(float(result)));
      EXPECT_EQ(result.bits >> 15, sign >> 31);
    }
}

}  // namespace
}  // namespace ashlar
