// The language on the device at hand: functions of math.h, tiles, launches.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/gpu/device_array.h"
#include "tests/kernels/gpu/probes.h"

namespace ashlar::device {
namespace {

class Language : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

std::vector<float> evaluated(Function f, const std::vector<float>& x) {
  const DeviceArray<float> in(x), out(x.size());
  EXPECT_EQ(evaluate(f, in.data(), out.data(), int64_t(x.size())), "");
  return out.values();
}

// Distance in units in the last place of `want`, rounded to float; at least those of denormals.
double ulps(float got, double want) {
  const float near = float(want);
  if (got == near || (std::isnan(got) && std::isnan(near))) return 0;
  if (!std::isfinite(got) || !std::isfinite(near)) return 1e9;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(near == 0 ? 1e-45f : near), -126) - 23);
  return std::abs(double(got) - want) / unit;
}

struct Range {
  float begin, end;
};
struct FunctionCase {
  const char* name;
  Function function;
  double (*exact)(double);
  std::vector<Range> ranges;
  double max_ulps;
};

double exact_sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// 20,000 numbers of each range: evenly, and evenly in their logarithm where the range allows it.
std::vector<float> numbers_of(const Range& range) {
  constexpr int kCount = 20000;
  std::vector<float> x;
  for (int i = 0; i <= kCount; ++i) {
    const double part = double(i) / kCount;
    x.push_back(float(double(range.begin) + part * (double(range.end) - double(range.begin))));
    if (range.begin > 0)
      x.push_back(
          float(double(range.begin) * std::pow(double(range.end) / double(range.begin), part)));
  }
  return x;
}

TEST_F(Language, FunctionsAreNearExact) {
  const FunctionCase cases[] = {
      {"exp", Function::kExp, std::exp, {{-1, 1}, {-110, 90}, {1e-30f, 1}}, 1},
      {"log", Function::kLog, std::log, {{0.5f, 2}, {1e-45f, 3e38f}, {0.99f, 1.01f}}, 1},
      {"log1p", Function::kLog1p, std::log1p, {{-0.999f, 1}, {1e-30f, 1e30f}}, 2.5},
      {"erf", Function::kErf, std::erf, {{-5, 5}, {1e-30f, 5}, {0.9f, 1.1f}}, 2},
      {"sigmoid", Function::kSigmoid, exact_sigmoid, {{-20, 20}, {-100, 100}}, 3},
      {"sqrt", Function::kSqrt, std::sqrt, {{0, 2}, {1e-45f, 3e38f}}, 0.5},
  };
  for (const FunctionCase& c : cases) {
    double most = 0;
    float at = 0;
    for (const Range& range : c.ranges) {
      const std::vector<float> x = numbers_of(range), y = evaluated(c.function, x);
      for (size_t i = 0; i < x.size(); ++i) {
        const double distance = ulps(y[i], c.exact(double(x[i])));
        if (distance > most) most = distance, at = x[i];
      }
    }
    EXPECT_LE(most, c.max_ulps) << c.name << " at " << at;
    RecordProperty(c.name, std::to_string(most));
  }
}

TEST_F(Language, FunctionsAtTheirEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0f, -0.0f, kInfinity, -kInfinity, nan, -1.0f, 1.0f};
  const auto expect = [&](Function f, std::vector<float> want) {
    const std::vector<float> got = evaluated(f, x);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_LE(ulps(got[i], double(want[i])), 1) << int(f) << " of " << x[i] << ": " << got[i];
  };
  expect(Function::kExp, {1, 1, kInfinity, 0, nan, std::exp(-1.0f), std::exp(1.0f)});
  expect(Function::kLog, {-kInfinity, -kInfinity, kInfinity, nan, nan, nan, 0});
  expect(Function::kLog1p, {0, 0, kInfinity, nan, nan, -kInfinity, std::log1p(1.0f)});
  expect(Function::kErf, {0, 0, 1, -1, nan, std::erf(-1.0f), std::erf(1.0f)});
  expect(Function::kSigmoid,
         {0.5f, 0.5f, 1, 0, nan, float(exact_sigmoid(-1)), float(exact_sigmoid(1))});
}

// The bits of all functions, the same on every device.
TEST_F(Language, FunctionsHaveTheSameBitsEverywhere) {
  uint64_t sum = checksum(std::vector<float>());
  for (const Function f : {Function::kExp, Function::kLog, Function::kLog1p, Function::kErf,
                           Function::kSigmoid, Function::kSqrt, Function::kToBf16})
    sum = checksum(evaluated(f, numbers_of({0.001f, 80})), sum);
  EXPECT_EQ(sum, 14078085108953630563u);
}

TEST_F(Language, TilesMultiply) {
  constexpr int kM = 128, kN = 64, kK = 96;
  const std::vector<float> a = steps_of_256(kM * kK, 1), b = steps_of_256(kN * kK, 2);
  const DeviceArray<uint16_t> a_in(bf16_bits(a)), b_in(bf16_bits(b));
  for (const bool transposed : {false, true})
    for (int mode = 0; mode < num_modes(); ++mode) {
      const std::string name = select_mode(mode);
      const DeviceArray<float> c(kM * kN);
      ASSERT_EQ(product({a_in.data(), b_in.data(), c.data(), kM, kN, kK, transposed}), "");
      const std::vector<float> got = c.values();
      for (size_t i = 0; i < kM; ++i)
        for (size_t j = 0; j < kN; ++j) {
          double want = 0;
          for (size_t k = 0; k < kK; ++k)
            want += double(a[i * kK + k]) * double(b[transposed ? k * kN + j : j * kK + k]);
          ASSERT_NEAR(got[i * kN + j], want, 1e-5) << name << ": " << i << ", " << j;
        }
    }
  select_mode(0);
}

uint64_t checksum_of_scaled_rows(Fault fault) {
  std::vector<float> x = steps_of_256(3 * 131, 1);
  for (float& value : x) value /= 3;  // sums are rounded
  const DeviceArray<float> in(x), out(x.size());
  EXPECT_EQ(scale_rows({in.data(), out.data(), 3, 131, fault}), "");
  return checksum(out.values());
}

// Sums go over 32 lanes whatever the size of a warp.  A sum over a warp, which every mode lets
// pass, shows here: it has other bits where a warp has 64 threads.
TEST_F(Language, SumsHaveTheSameBitsEverywhere) {
  EXPECT_EQ(checksum_of_scaled_rows(Fault::kNone), 6596997171522759278u);
  EXPECT_EQ(checksum_of_scaled_rows(Fault::kSumOverWarp),
            warp_size() == 32 ? 5924013825645552268u : 17186023825572584760u);
}

}  // namespace
}  // namespace ashlar::device
