// Half precision against the values that numpy 2 gives (numpy.float64 to numpy.float16), and back.
#include "ashlar/tensor/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ashlar {
namespace {

TEST(F16, RoundsAsNumpyDoes) {
  const struct {
    double value;
    uint16_t bits;
  } cases[] = {
      {0.0, 0x0000},
      {-0.0, 0x8000},
      {1.0, 0x3c00},
      {-2.5, 0xc100},
      {0.1, 0x2e66},
      {1.0 + 0x1p-11, 0x3c00},            // a tie, to even
      {1.0 + 3 * 0x1p-11, 0x3c02},        // the same
      {1.0 + 0x1p-11 + 0x1p-40, 0x3c01},  // just above: no float between would tell
      {65504.0, 0x7bff},                  // the largest
      {65519.996, 0x7bff},
      {65520.0, 0x7c00},  // infinite from here on
      {-1e300, 0xfc00},
      {0x1p-14, 0x0400},            // the least normal one
      {0x1p-14 - 0x1p-25, 0x0400},  // a tie between the largest subnormal and it
      {0x1p-24, 0x0001},            // the least
      {0x1p-25, 0x0000},            // a tie, to even
      {0x1.8p-25, 0x0001},
      {1e-300, 0x0000},
      {5e-324, 0x0000},
  };
  for (const auto& each : cases) EXPECT_EQ(f16(each.value).bits, each.bits) << each.value;
  EXPECT_EQ(f16(std::numeric_limits<double>::infinity()).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(float(f16(std::nan("")))));
}

TEST(F16, EveryOneComesBackFromFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    f16 value;
    value.bits = uint16_t(bits);
    const float wide = value;
    if (std::isnan(wide))
      EXPECT_TRUE(std::isnan(float(f16(wide)))) << bits;
    else
      EXPECT_EQ(f16(wide).bits, bits);
  }
}

}  // namespace
}  // namespace ashlar
