// Functions of one float, made of the operations of gpu.h alone: the same bits on every device.
// Errors are in units in the last place, as tests/kernels/gpu/language_test.cpp bounds them.
#pragma once

#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

// c[0] + c[1] x + c[2] x^2 ...
template <int n>
ASHLAR_DEVICE float polynomial(float x, const float (&c)[n]) {
  float sum = c[n - 1];
#pragma unroll
  for (int i = n - 2; i >= 0; --i) sum = fma(sum, x, c[i]);
  return sum;
}

// 2^n for n from -126 to 127.
ASHLAR_DEVICE float power_of_2(int n) {
  return bits_to_float(uint32_t(n + 127) << 23);
}

ASHLAR_DEVICE float absolute(float x) {
  return bits_to_float(float_to_bits(x) & 0x7fffffffu);
}

// e^x within 1 ulp; denormal below -87.4, 0 below -104, infinite above 88.73.
ASHLAR_DEVICE float exp(float x) {
  if (!(x > -104.0f)) return x == x ? 0.0f : x;
  if (x > 88.73f) return bits_to_float(0x7f800000u);
  // x = n log 2 + r, |r| <= log(2) / 2.  Adding kRound, 1.5 * 2^23, rounds to an integer; log 2 is
  // subtracted in two parts, of which the first has so few bits that its product with n is exact.
  constexpr float kRound = 12582912.0f, kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  const float rounded = add(mul(x, 1.44269504f), kRound), n = add(rounded, -kRound);
  const float r = fma(n, -kLog2Low, fma(n, -kLog2High, x));
  constexpr float kSeries[] = {0.5f,           0.16666667f,    0.041666463f,
                               0.00833331048f, 0.00139336858f, 0.00019891031f};
  const float y = add(fma(polynomial(r, kSeries), mul(r, r), r), 1.0f);
  const int power = int(float_to_bits(rounded) - float_to_bits(kRound)), first = power / 2;
  return mul(mul(y, power_of_2(first)), power_of_2(power - first));
}

// The natural logarithm within 1 ulp; -infinite at 0, NaN below.
ASHLAR_DEVICE float log(float x) {
  constexpr uint32_t kInfinity = 0x7f800000u, kNan = 0x7fc00000u, kMantissa = 0x7fffffu;
  const bool denormal = x < 1.17549435e-38f;
  const uint32_t bits = float_to_bits(denormal ? mul(x, power_of_2(24)) : x);
  if (!(x > 0.0f)) return bits_to_float(x == 0.0f ? 0xff800000u : kNan);
  if (bits >= kInfinity) return x;  // infinite or NaN
  // x = 2^e (1 + f), 1 + f between the roots of 1/2 and of 2.
  constexpr uint32_t kRootOfHalf = 0x3f3504f3u, kOne = 0x3f800000u;
  const uint32_t shifted = bits + (kOne - kRootOfHalf);
  const float e = float(int(shifted >> 23) - 127 - (denormal ? 24 : 0));
  const float f = add(bits_to_float((shifted & kMantissa) + kRootOfHalf), -1.0f);
  constexpr float kSeries[] = {0.33333331f,  -0.24999997f, 0.20000716f,  -0.16667803f, 0.14249058f,
                               -0.12425687f, 0.1168542f,   -0.11479734f, 0.069716118f};
  const float square = mul(f, f);
  float low = mul(mul(polynomial(f, kSeries), f), square);
  low = fma(e, -2.12194440e-4f, low);
  low = fma(square, -0.5f, low);
  return fma(e, 0.693359375f, add(f, low));
}

// log(1 + x) within 2.5 ulp.
ASHLAR_DEVICE float log1p(float x) {
  const float u = add(1.0f, x), rounded = add(u, -1.0f);
  if (rounded == 0.0f) return x;
  if (!(u < 3.0e38f)) return log(u);  // infinite or NaN
  return u == 0.0f ? log(u) : mul(log(u), div(x, rounded));
}

// The error function within 2 ulp.
ASHLAR_DEVICE float erf(float x) {
  const float t = absolute(x);
  if (t < 0.96f) {
    constexpr float kSeries[] = {0.12837917f,    -0.37612632f,     0.11283657f,   -0.026857302f,
                                 0.00519594783f, -0.000808645913f, 8.13870502e-5f};
    return fma(polynomial(mul(x, x), kSeries), x, x);
  }
  constexpr float kSeries[] = {-0.000329186f, 1.1302729f,     0.63175386f,
                               0.11015249f,   -0.02646479f,   0.00477583567f,
                               -0.000600455f, 4.65122539e-5f, -1.66117945e-6f};
  const float size = t < 3.95f ? add(1.0f, -exp(-polynomial(t, kSeries))) : t == t ? 1.0f : t;
  return x < 0.0f ? -size : size;
}

// 1 / (1 + e^-x).
ASHLAR_DEVICE float sigmoid(float x) {
  const float e = exp(-absolute(x)), sum = add(1.0f, e);
  return div(x < 0.0f ? e : 1.0f, sum);
}

}  // namespace ashlar::device
