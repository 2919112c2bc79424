// Products with weights of 8 bits against sums in double precision, on every engine; and rows that
// have the same bits alone as among others.
#include "ashlar/kernels/int8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

enum class Grouping { kDense, kRows, kColumns };

struct Int8Case {
  Grouping grouping;
  DType compute, x, y;
  int64_t T, N, K;
  bool accumulate = false;
  std::string name() const {
    return fmt::format("{} of {}, {} to {}, {} x {} x {}", int(grouping), name_of(compute),
                       name_of(x), name_of(y), T, N, K);
  }
};

constexpr int64_t kGroups = 3;

std::vector<Int8Case> int8_cases() {
  std::vector<Int8Case> cases;
  using enum DType;
  for (const DType compute : {kBF16, kF32})
    for (const int64_t T : {1, 2, 3, 17, 65})
      for (const auto& [N, K] :
           {std::pair<int64_t, int64_t>{1, 5}, {32, 32}, {100, 70}, {37, 300}}) {
        const DType x = compute == kBF16 && T % 2 == 1 ? kBF16 : kF32;
        cases.push_back({Grouping::kDense, compute, x, kF32, T, N, K});
        cases.push_back({Grouping::kDense, compute, kF32, x, T, N, K});
        cases.push_back({Grouping::kDense, compute, x, kF32, T, N, K, true});
        cases.push_back({Grouping::kRows, compute, x, kF32, T, N, K});
        cases.push_back({Grouping::kColumns, compute, x, kF32, T, N, K});
      }
  return cases;
}

// The first group has none of the rows, as an expert that nobody chose.
std::vector<int32_t> rows_of_groups(int64_t T) {
  return {0, 0, int32_t(T / 3), int32_t(T)};
}

struct Int8Product {
  Int8Product(const Int8Case& c, bool int8, int num_threads)
      : c(c), bench({}, false, num_threads), groups(c.grouping == Grouping::kDense ? 1 : kGroups) {
    const int64_t columns = c.grouping == Grouping::kColumns ? kGroups : 1;
    ctx = bench.context();
    ctx.workspace = &workspace;
    x = bench.random(c.x, "x", {c.T, columns * c.K});
    y = bench.random(c.y, "y", {c.T, columns * c.N});
    w.w = bench.random(DType::kF32, "w", {groups, c.N, c.K});
    if (c.grouping == Grouping::kDense) w.w = w.w.view({c.N, c.K});
    // Rows of unlike size, and one of zeros.
    for (int64_t i = 0; i < w.w.numel(); ++i) {
      const int64_t row = i / c.K;
      w.w.as<float>()[i] *= row % 5 == 4 ? 0.0f : std::exp2(float(row % 7) * 3.0f);
    }
    const OperandLayout layout = operand_layout(ctx, groups, c.N, c.K, c.compute, false);
    w.forward = bench.zeros(layout.dtype, {layout.forward_numel});
    pack(ctx, w);
    if (!int8) return;
    round_to_int8(ctx, c.compute, w);
    EXPECT_EQ(w.forward.dtype, DType::kI8);
  }
  void run(int64_t begin, int64_t end) {
    const Matrix from = Matrix::of(x).row_range(begin, end),
                 to = Matrix::of(y).row_range(begin, end);
    if (c.grouping == Grouping::kDense) linear_forward(ctx, c.compute, from, w, to, c.accumulate);
    if (c.grouping == Grouping::kColumns) blockdiag_linear_forward(ctx, c.compute, from, w, to);
    if (c.grouping != Grouping::kRows) return;
    const Tensor rows = bench.zeros(DType::kI32, {kGroups + 1});
    const std::vector<int32_t> all = rows_of_groups(c.T);
    for (size_t g = 0; g < all.size(); ++g)
      rows.as<int32_t>()[g] = std::clamp(all[g], int32_t(begin), int32_t(end)) - int32_t(begin);
    grouped_linear_forward(ctx, c.compute, from, w, rows, to);
  }
  Int8Case c;
  Bench bench;
  Allocator allocator{Device::kCpu};
  Arena workspace{allocator, 4 << 20, Tag::kWorkspace};
  Context ctx;
  int64_t groups;
  Tensor x, y;
  Operand w{};
};

float number(const Tensor& tensor, int64_t i) {
  return tensor.dtype == DType::kBF16 ? float(tensor.as<bf16>()[i]) : tensor.as<float>()[i];
}

// The group, the column of x and the row of w that make y[t][n].
struct Origin {
  int64_t group, column, row;
};
Origin origin_of(const Int8Case& c, int64_t t, int64_t n) {
  if (c.grouping == Grouping::kDense) return {0, 0, n};
  if (c.grouping == Grouping::kColumns) return {n / c.N, n / c.N * c.K, n % c.N};
  const std::vector<int32_t> rows = rows_of_groups(c.T);
  int64_t g = 0;
  while (t >= rows[size_t(g) + 1]) ++g;
  return {g, 0, n};
}

void expect_int8_sums(const Int8Product& p, const std::vector<float>& before) {
  const Int8Case& c = p.c;
  const int64_t columns = p.y.shape[1], x_columns = p.x.shape[1];
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t n = 0; n < columns; ++n) {
      const Origin from = origin_of(c, t, n);
      const float* w = p.w.w.as<float>() + (from.group * c.N + from.row) * c.K;
      double most = 0, sum = 0, size = 0;
      for (int64_t k = 0; k < c.K; ++k) most = std::max(most, double(std::abs(w[k])));
      const double scale = most / 127;
      for (int64_t k = 0; k < c.K; ++k) {
        const double integer = scale > 0 ? std::nearbyint(double(w[k]) / scale) : 0;
        const double product = number(p.x, t * x_columns + from.column + k) * integer * scale;
        sum += product, size += std::abs(product);
        // A tie may be broken otherwise by a last bit of the scale.
        size += 1e3 * std::abs(product) *
                double(std::abs(std::abs(double(w[k]) / scale - integer) - 0.5) < 1e-4);
      }
      if (c.accumulate) sum += before[size_t(t * columns + n)];
      const double bound = 2e-7 * (4 + std::sqrt(double(c.K))) * (size + std::abs(sum)) +
                           (c.y == DType::kBF16 ? std::abs(sum) / 256 : 0);
      ASSERT_NEAR(number(p.y, t * columns + n), sum, bound + 1e-30) << t << " " << n;
    }
}

class Int8Products : public testing::Test {
 protected:
  ~Int8Products() override { select_isa(supported_isas().back()); }
};

TEST_F(Int8Products, EqualSumsOverRoundedWeights) {
  for (const Isa isa : supported_isas())
    for (const Int8Case& c : int8_cases()) {
      SCOPED_TRACE(fmt::format("{}: {}", name_of(isa), c.name()));
      select_isa(isa);
      std::vector<std::byte> first;
      for (const int num_threads : {1, 2, 3}) {
        Int8Product p(c, true, num_threads);
        std::vector<float> before;
        for (int64_t i = 0; i < p.y.numel(); ++i) before.push_back(number(p.y, i));
        p.run(0, c.T);
        if (first.empty()) {
          expect_int8_sums(p, before);
          first.assign(p.y.data, p.y.data + p.y.bytes());
        }
        ASSERT_EQ(std::memcmp(first.data(), p.y.data, first.size()), 0);
      }
    }
}

// A decoded token, alone or beside others, and with weights of any form.
TEST_F(Int8Products, AndOthersGiveARowTheSameBitsAlone) {
  for (const Isa isa : supported_isas())
    for (const Int8Case& c : int8_cases())
      for (const bool int8 : {false, true}) {
        SCOPED_TRACE(fmt::format("{}: {} {}", name_of(isa), c.name(), int8));
        select_isa(isa);
        Int8Product together(c, int8, 2), apart(c, int8, 2);
        together.run(0, c.T);
        for (int64_t t = 0; t < c.T; t += 1 + t % 2) apart.run(t, std::min(c.T, t + 1 + t % 2));
        ASSERT_EQ(std::memcmp(together.y.data, apart.y.data, size_t(apart.y.bytes())), 0);
      }
}

TEST_F(Int8Products, TakeTheSameWorkspaceOnMeta) {
  for (const Int8Case& c : int8_cases()) {
    Int8Product run(c, true, 2);
    run.run(0, c.T);
    Bench meta({}, false, 2, Device::kMeta);
    Operand w{Tensor{nullptr, DType::kF32, Device::kMeta, run.w.w.shape}, {}, {}};
    const OperandLayout layout =
        operand_layout(meta.context(), run.groups, c.N, c.K, c.compute, false);
    w.forward = meta.zeros(layout.dtype, {layout.forward_numel});
    round_to_int8(meta.context(), c.compute, w);
    EXPECT_EQ(w.forward.shape, run.w.forward.shape);
    const Matrix x = Matrix::of(meta.zeros(c.x, run.x.shape)),
                 y = Matrix::of(meta.zeros(c.y, run.y.shape));
    if (c.grouping == Grouping::kDense)
      linear_forward(meta.context(), c.compute, x, w, y, c.accumulate);
    else if (c.grouping == Grouping::kColumns)
      blockdiag_linear_forward(meta.context(), c.compute, x, w, y);
    else
      grouped_linear_forward(meta.context(), c.compute, x, w,
                             meta.zeros(DType::kI32, {kGroups + 1}), y);
    EXPECT_EQ(meta.taken().peak_bytes(), run.workspace.peak_bytes()) << c.name();
  }
}

}  // namespace
}  // namespace ashlar::kernels
