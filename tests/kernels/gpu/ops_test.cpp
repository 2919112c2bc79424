#include <bit>
#include <fstream>
#include <limits>
#include <map>

#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {

uint64_t expected_checksum(const std::string& name) {
  static const std::map<std::string, uint64_t> known = [] {
    std::map<std::string, uint64_t> sums;
    const char* elsewhere = std::getenv("ASHLAR_GPU_CHECKSUMS");
    std::ifstream file(elsewhere ? elsewhere : ASHLAR_GPU_CHECKSUMS);
    std::string key, sum;
    while (file >> key >> sum) sums[key] = std::stoull(sum, nullptr, 16);
    return sums;
  }();
  const auto found = known.find(name);
  return found == known.end() ? 0 : found->second;
}

namespace {

// Skips all tests of the program, with the reason, where there is no device.
class DeviceEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  }
};
const testing::Environment* const kDeviceEnvironment =
    testing::AddGlobalTestEnvironment(new DeviceEnvironment);

constexpr double kEps = 1e-5;
const Precision kPrecisions[] = {{DType::kF32, DType::kF32},
                                 {DType::kF32, DType::kBF16},
                                 {DType::kBF16, DType::kBF16},
                                 {DType::kBF16, DType::kF32}};

std::string types_of(const Precision& p) {
  return fmt::format("{}-{}", name_of(p.stream), name_of(p.product));
}

// Columns of a wider matrix, so that rows are strided; `first` shifts their addresses.
Matrix columns_of(const Tensor& tensor, int64_t first, int64_t count) {
  return Matrix::of(tensor).columns(first, first + count);
}

struct Strided {
  int64_t rows, cols, first, stride;
};
constexpr Strided kStrided[] = {{1, 1, 0, 1}, {3, 40, 8, 64}, {5, 16, 0, 16}, {7, 13, 3, 19}};

TEST(GpuCopy, ConvertsAsTheCpu) {
  for (const Strided& s : kStrided)
    for (const DType from : {DType::kF64, DType::kF32, DType::kBF16})
      for (const DType to : {DType::kF64, DType::kF32, DType::kBF16})
        expect_bits_of_cpu(
            fmt::format("copy {} to {}, stride {}", name_of(from), name_of(to), s.stride),
            [&](Place& p) -> std::vector<Output> {
              const Tensor in = p.random(from, "in", {s.rows, s.stride});
              const Tensor out = p.random(to, "out", {s.rows, s.stride});
              kernels::copy(p.context(), columns_of(in, s.first, s.cols),
                            columns_of(out, s.first, s.cols));
              return {{"out", out}};
            });
}

TEST(GpuCopy, RoundsAsTheCpu) {
  // Halfway cases, denormals, the largest values, infinities and NaN.
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000u; high += 257)
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  const int64_t n = int64_t(values.size());
  for (const DType from : {DType::kF32, DType::kF64})
    expect_bits_of_cpu(std::string(name_of(from)), [&](Place& p) -> std::vector<Output> {
      const Tensor in = p.zeros(from, {n}), out = p.unset(DType::kBF16, {n});
      const auto fill = [&](auto* x) { std::ranges::copy(values, x); };
      from == DType::kF64 ? p.edit<double>(in, fill) : p.edit<float>(in, fill);
      kernels::copy(p.context(), Matrix::of(in), Matrix::of(out));
      return {{"out", out}};
    });
}

TEST(GpuCopy, CopiesAnyType) {
  for (const Strided& s : kStrided)
    for (const DType dtype : {DType::kI64, DType::kI32})
      expect_bits_of_cpu(fmt::format("{}, stride {}", name_of(dtype), s.stride),
                         [&](Place& p) -> std::vector<Output> {
                           const Tensor in = p.zeros(dtype, {s.rows, s.stride});
                           p.edit<std::byte>(in, [&](std::byte* x) {
                             for (int64_t i = 0; i < in.bytes(); ++i) x[i] = std::byte(i * 7);
                           });
                           const Tensor out = p.zeros(dtype, {s.rows, s.stride});
                           kernels::copy(p.context(), columns_of(in, s.first, s.cols),
                                         columns_of(out, s.first, s.cols));
                           return {{"out", out}};
                         });
}

TEST(GpuCopy, AddsAsTheCpu) {
  constexpr std::pair<DType, DType> kTypes[] = {{DType::kF64, DType::kF64},
                                                {DType::kF32, DType::kF32},
                                                {DType::kF32, DType::kBF16},
                                                {DType::kI64, DType::kI64}};
  for (const Strided& s : kStrided)
    for (const auto& [from, to] : kTypes)
      expect_bits_of_cpu(
          fmt::format("add {} to {}, stride {}", name_of(from), name_of(to), s.stride),
          [&](Place& p) -> std::vector<Output> {
            const Shape shape{s.rows, s.stride};
            const bool ints = to == DType::kI64;
            const Tensor in = ints ? p.zeros(to, shape) : p.random(from, "in", shape);
            const Tensor out = ints ? p.zeros(to, shape) : p.random(to, "out", shape);
            if (ints) {
              p.edit<int64_t>(in, [&](int64_t* x) {
                for (int64_t i = 0; i < in.numel(); ++i) x[i] = (i << 40) - 5;
              });
              p.edit<int64_t>(out, [&](int64_t* x) {
                for (int64_t i = 0; i < out.numel(); ++i) x[i] = -i;
              });
            }
            kernels::add(p.context(), columns_of(in, s.first, s.cols),
                         columns_of(out, s.first, s.cols));
            return {{"out", out}};
          });
}

// The factor keeps the bits of fp32: rounded to bf16, this one would be 1.
TEST(GpuCopy, ScalesAsTheCpu) {
  for (const int64_t n : {0, 1, 40, 3001})
    for (const int64_t first : {0, 3})  // 3: no vector fits
      for (const DType dtype : {DType::kF32, DType::kBF16})
        expect_bits_of_cpu(fmt::format("scale {} of {}", n, name_of(dtype)),
                           [&](Place& p) -> std::vector<Output> {
                             const Tensor x = p.random(dtype, "x", {n + 8});
                             kernels::scale(p.context(), x.slice(first, first + n), 1 + 0x1p-8);
                             return {{"x", x}};
                           });
}

TEST(GpuCopy, FillsAsTheCpu) {
  for (const Strided& s : kStrided)
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI32})
      for (const double value : {0.0, -1.25})
        expect_bits_of_cpu(
            fmt::format("fill {} with {}, stride {}", name_of(dtype), value, s.stride),
            [&](Place& p) -> std::vector<Output> {
              const bool real = dtype == DType::kF64 || dtype == DType::kF32;
              const Tensor out = p.zeros(dtype, {s.rows, s.stride});
              p.edit<std::byte>(out, [&](std::byte* x) {
                for (int64_t i = 0; i < out.bytes(); ++i) x[i] = std::byte(i);
              });
              kernels::fill(p.context(), columns_of(out, s.first, s.cols), real ? value : 0.0);
              return {{"out", out}};
            });
}

struct NormShape {
  int64_t T, H;
};
// One pack a thread, and two; several blocks of partial sums.
constexpr NormShape kNormShapes[] = {{1, 1}, {3, 7}, {65, 64}, {130, 296}, {2, 4104}};

std::vector<Output> run_norm(Place& p, const NormShape& s, bool more, double offset) {
  const Shape TH{s.T, s.H}, H{s.H}, T{s.T};
  const Tensor h = p.random(p.stream(), "h", TH), w = p.random(p.wide(), "w", H, 1);
  const Tensor y = p.unset(p.product(), TH), rstd = p.unset(p.wide(), T);
  kernels::rms_norm_forward(p.context(), kEps, h, w, y, rstd, offset);
  const Tensor dy = p.random(p.product(), "dy", TH), dw = p.random(p.wide(), "dw", H);
  const Tensor dh_in = more ? p.random(p.stream(), "dh_in", TH) : Tensor();
  const Tensor dy_in = more ? p.random(p.stream(), "dy_in", TH) : Tensor();
  const Tensor dh = more ? dh_in : p.unset(p.stream(), TH);
  kernels::rms_norm_backward(p.context(), {.dy_TH = dy,
                                           .h_TH = h,
                                           .w_H = w,
                                           .rstd_T = rstd,
                                           .dh_in_TH = dh_in,
                                           .dy_in_TH = dy_in,
                                           .dh_TH = dh,
                                           .dw_H = dw,
                                           .weight_offset = offset});
  return {{"y", y}, {"rstd", rstd}, {"dh", dh}, {"dw", dw}};
}

TEST(GpuNorm, MatchesTheReferenceInEveryMode) {
  for (const NormShape& s : kNormShapes)
    for (const Precision& precision : kPrecisions)
      for (const bool more : {false, true})
        expect_op(
            fmt::format("rms_norm/{}x{}/{}{}", s.T, s.H, types_of(precision), more ? "/more" : ""),
            precision, [&](Place& p) { return run_norm(p, s, more, more ? 1 : 0); });
}

TEST(GpuNorm, RefusesRowsThatDoNotFit) {
  Bench bench({DType::kF32, DType::kF32});
  const Shape TH{1, device::kMaxRowWidth + 1};
  const Tensor h = bench.zeros(DType::kF32, TH), w = bench.zeros(DType::kF32, {TH[1]});
  const Tensor rstd = bench.zeros(DType::kF32, {1});
  EXPECT_THROW(gpu::rms_norm_forward(bench.context(), kEps, h, w, h, rstd, 0), Error);
}

struct SwigluShape {
  int64_t T, F;
};

std::vector<Output> run_swiglu(Place& p, const SwigluShape& s, bool experts) {
  const Tensor gate_up = p.random(p.product(), "gate_up", {s.T, 2 * s.F});
  const Tensor dact = p.random(p.product(), "dact", {s.T, s.F});
  const Tensor act = p.unset(p.product(), {s.T, s.F});
  const Tensor dgate_up = p.unset(p.product(), {s.T, 2 * s.F});
  const int64_t rows = experts ? s.T / 2 : s.T;
  const Tensor ends = experts ? p.ints({0, int32_t(rows / 2), int32_t(rows)}) : Tensor();
  kernels::swiglu_forward(p.context(), ends, gate_up, act);
  kernels::swiglu_backward(p.context(), ends, dact, gate_up, dgate_up);
  return {{"act", act.slice(0, rows)}, {"dgate_up", dgate_up.slice(0, rows)}};
}

TEST(GpuSwiglu, MatchesTheReferenceInEveryMode) {
  for (const SwigluShape& s : {SwigluShape{1, 1}, {17, 5}, {65, 64}})
    for (const DType product : {DType::kF32, DType::kBF16})
      for (const bool experts : {false, true})
        expect_op(
            fmt::format("swiglu/{}x{}/{}{}", s.T, s.F, name_of(product), experts ? "/experts" : ""),
            {DType::kF32, product}, [&](Place& p) { return run_swiglu(p, s, experts); });
}

TEST(GpuSwiglu, LeavesRowsOfNoExpertAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor gate_up = p.random(DType::kF32, "gate_up", {4, 16});
  const Tensor act = p.random(DType::kF32, "act", {4, 8});
  const std::vector<double> before = values_of(act);
  kernels::swiglu_forward(p.context(), p.ints({0, 3}), gate_up, act);
  const std::vector<double> after = values_of(act);
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i] == before[i], i >= 24) << i;
}

std::vector<Output> run_adamw(Place& p, int64_t n, int64_t first) {
  const auto part = [&](const char* name, double center) {
    return p.random(p.wide(), name, {first + n}, center).slice(first, first + n);
  };
  // v is a mean of squares: not negative.
  const Tensor g = part("g", 0), w = part("w", 0), m = part("m", 0), v = part("v", 1);
  for (const int64_t step : {1, 7})
    kernels::adamw(p.context(), {.step = {.lr = 1e-2,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .decay = 0.1,
                                          .step = step,
                                          .grad_scale = 0.5},
                                 .g = g,
                                 .w = w,
                                 .m = m,
                                 .v = v});
  return {{"w", w}, {"m", m}, {"v", v}};
}

TEST(GpuUpdate, AdamWMatchesTheReferenceInEveryMode) {
  for (const int64_t n : {1, 17, 2500})
    for (const int64_t first : {0, 3})  // 3: no vector fits
      expect_op(fmt::format("adamw/{}/{}", n, first), {DType::kF32, DType::kF32},
                [&](Place& p) { return run_adamw(p, n, first); });
}

// An update in pieces gives the bits of one, and refreshes its rows of the weights in bf16.
TEST(GpuUpdate, AdamWRefreshesTheOperand) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor w = p.random(DType::kF32, "w", {6, 8}), g = p.random(DType::kF32, "g", {6, 8});
  const Tensor m = p.zeros(DType::kF32, {6, 8}), v = p.zeros(DType::kF32, {6, 8});
  const Tensor packed = p.random(DType::kBF16, "packed", {6, 8});
  const std::vector<double> before = values_of(packed);
  const Operand operand{.w = w, .forward = packed, .backward = {}};
  const auto rows = [](const Tensor& t) { return t.slice(2, 5); };
  kernels::adamw(
      p.context(),
      {.step = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .step = 1},
       .g = rows(g),
       .w = rows(w),
       .m = rows(m),
       .v = rows(v),
       .packed = {.operand = &operand, .row = 2}});
  const std::vector<double> after = values_of(packed), weights = values_of(w);
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i],
              i / 8 >= 2 && i / 8 < 5 ? double(float(bf16(float(weights[i])))) : before[i]);
}

TEST(GpuUpdate, SumOfSquaresMatchesTheReferenceInEveryMode) {
  for (const int64_t n : {1, 4096, 10001})
    expect_op(fmt::format("sum_of_squares/{}", n), {DType::kF32, DType::kF32},
              [&](Place& p) -> std::vector<Output> {
                const Tensor x = p.random(p.wide(), "x", {n}), sum = p.unset(DType::kF64, {1});
                kernels::sum_of_squares(p.context(), x, sum);
                return {{"sum", sum}};
              });
}

TEST(GpuUpdate, SumOfSquaresOfNothingAndOfNan) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor sum = p.unset(DType::kF64, {1});
  kernels::sum_of_squares(p.context(), p.zeros(DType::kF32, {0}), sum);
  EXPECT_EQ(values_of(sum)[0], 0);
  const Tensor x = p.zeros(DType::kF32, {5000});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    p.edit<float>(x, [&](float* v) { v[4999] = bad; });
    kernels::sum_of_squares(p.context(), x, sum);
    EXPECT_FALSE(std::isfinite(values_of(sum)[0]));
  }
}

}  // namespace
}  // namespace ashlar::kernels
