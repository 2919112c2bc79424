// Weight gradients without accumulate: the bits of adding onto zeros, and old values are not read.
#include <algorithm>
#include <array>
#include <cstring>

#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/linear.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

struct OverwriteCase {
  Precision precision;
  bool reference;
  Isa isa;
};

// Values of dw after one call onto zeros and one, without accumulate, onto NaN.
void expect_same(Bench& bench, const Shape& shape,
                 const std::function<void(const Tensor& dw, bool accumulate)>& product) {
  const Tensor added = bench.stream(shape), overwritten = bench.stream(shape);
  std::memset(overwritten.data, 0xff, size_t(overwritten.bytes()));  // NaN in every element
  product(added, true);
  product(overwritten, false);
  for (int64_t i = 0; i < added.numel(); ++i) {
    const bool wide = added.dtype == DType::kF64;
    const double expected = wide ? added.as<double>()[i] : double(added.as<float>()[i]);
    const double found = wide ? overwritten.as<double>()[i] : double(overwritten.as<float>()[i]);
    ASSERT_EQ(found, expected) << "element " << i << " of " << shape.to_string();
  }
}

class LinearOverwrite : public testing::TestWithParam<OverwriteCase> {
 protected:
  void SetUp() override { select_isa(GetParam().isa); }
  void TearDown() override { select_isa(supported_isas().back()); }
  DType compute() const { return GetParam().precision.product; }
};

TEST_P(LinearOverwrite, Dense) {
  Bench bench(GetParam().precision, GetParam().reference, 2);
  for (const auto& [T, N, K] : std::vector<std::array<int64_t, 3>>{
           {0, 5, 4}, {1, 1, 1}, {3, 17, 5}, {65, 33, 70}, {200, 96, 48}}) {
    const Tensor dy = bench.product("dy", {T, N}), x = bench.product("x", {T, K});
    expect_same(bench, {N, K}, [&](const Tensor& dw, bool accumulate) {
      linear_backward_weight(bench.context(), compute(), Matrix::of(dy), Matrix::of(x), dw,
                             accumulate);
    });
  }
}

TEST_P(LinearOverwrite, ExpertsWithoutTokensBecomeZero) {
  Bench bench(GetParam().precision, GetParam().reference, 2);
  const int64_t T = 70, N = 34, K = 19;
  const Tensor dy = bench.product("dy", {T, N}), x = bench.product("x", {T, K});
  for (const std::vector<int32_t>& rows : std::vector<std::vector<int32_t>>{
           {0, 0, 70, 70, 70}, {0, 1, 1, 40, 69}, {0, 0, 0, 0, 0}, {0, 17, 35, 50, 70}})
    expect_same(bench, {4, N, K}, [&](const Tensor& dw, bool accumulate) {
      grouped_linear_backward_weight(bench.context(), compute(), Matrix::of(dy), Matrix::of(x),
                                     bench.ints(rows), dw, accumulate);
    });
}

TEST_P(LinearOverwrite, BlockDiagonal) {
  Bench bench(GetParam().precision, GetParam().reference, 2);
  const int64_t T = 37, G = 3, N = 16, K = 32;
  const Tensor dy = bench.product("dy", {T, G * N}), x = bench.product("x", {T, G * K});
  expect_same(bench, {G, N, K}, [&](const Tensor& dw, bool accumulate) {
    blockdiag_linear_backward_weight(bench.context(), compute(), Matrix::of(dy), Matrix::of(x), dw,
                                     accumulate);
  });
}

std::vector<OverwriteCase> cases() {
  const Precision f64{DType::kF64, DType::kF64}, f32{DType::kF32, DType::kF32},
      bf16{DType::kF32, DType::kBF16};
  std::vector<OverwriteCase> list;
  for (const Precision& precision : {f64, f32, bf16}) list.push_back({precision, true, isa()});
  for (const Isa each : supported_isas())
    for (const Precision& precision : {f32, bf16}) list.push_back({precision, false, each});
  return list;
}
INSTANTIATE_TEST_SUITE_P(Types, LinearOverwrite, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name(info.param.reference ? "plain" : name_of(info.param.isa));
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_" + std::string(name_of(info.param.precision.product));
});

}  // namespace
}  // namespace ashlar::kernels
