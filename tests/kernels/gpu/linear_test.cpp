// Dense products, by the library of the device's vendor or, in the emulator, by its stand-in.
#include "tests/kernels/gpu/product_case.h"

namespace ashlar::kernels {
namespace {

struct DenseCase {
  int64_t T, N, K;
  DType x, y;          // types of the activations
  int64_t beside = 0;  // columns of other parts, before and behind
  bool accumulate = false;
  std::string name() const {
    return fmt::format("{} x {} x {}, {} to {}, {} beside{}", T, N, K, name_of(x), name_of(y),
                       beside, accumulate ? ", added" : "");
  }
};

// Sums of inputs that every type holds exactly: fp32 rounds each step, bf16 the result.
Bar bar_of(DType result) {
  return result == DType::kBF16 ? Bar{4e-3, 4e-3} : kFloatBar;
}

DType type_at(const Place& p, DType type) {
  return p.stream() == DType::kF64 ? DType::kF64 : type;
}

// A matrix with other columns on both sides, which the op must leave alone.
struct Activation {
  Tensor whole;
  Matrix matrix;
};
Activation activation(Place& p, const DenseCase& c, DType type, const char* name, int64_t cols) {
  const Tensor whole = p.random(type_at(p, type), name, {c.T, cols + 2 * c.beside});
  return {whole, Matrix::of(whole).columns(c.beside, c.beside + cols)};
}

Operand weight(Place& p, const DenseCase& c) {
  Operand w{p.random(p.wide(), "w", {c.N, c.K}), {}, {}};
  const OperandLayout layout =
      operand_layout(p.context(), 1, c.N, c.K, type_at(p, p.product()), true);
  if (layout.forward_numel > 0) w.forward = p.unset(layout.dtype, {layout.forward_numel});
  if (layout.backward_numel > 0) w.backward = p.unset(layout.dtype, {layout.backward_numel});
  pack(p.context(), w);
  return w;
}

void expect_dense(const DenseCase& c, DType compute, DType result, const PlacedOp& op) {
  expect_product_op(fmt::format("{}, in {}", c.name(), name_of(compute)), compute, {bar_of(result)},
                    op, Products::kOfLibrary);
}

void expect_all_passes(const DenseCase& c) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    expect_dense(c, compute, c.y, [&](Place& p) -> std::vector<Output> {
      const Activation x = activation(p, c, c.x, "x", c.K), y = activation(p, c, c.y, "y", c.N);
      linear_forward(p.context(), p.product(), x.matrix, weight(p, c), y.matrix, c.accumulate);
      return {{"y", y.whole}};
    });
    expect_dense(c, compute, c.y, [&](Place& p) -> std::vector<Output> {
      const Activation dy = activation(p, c, c.x, "dy", c.N), dx = activation(p, c, c.y, "dx", c.K);
      linear_backward_input(p.context(), p.product(), dy.matrix, weight(p, c), dx.matrix,
                            c.accumulate);
      return {{"dx", dx.whole}};
    });
    expect_dense(c, compute, DType::kF32, [&](Place& p) -> std::vector<Output> {
      const Activation dy = activation(p, c, c.x, "dy", c.N), x = activation(p, c, c.y, "x", c.K);
      const Tensor dw = p.random(p.wide(), "dw", {c.N, c.K});
      linear_backward_weight(p.context(), p.product(), dy.matrix, x.matrix, dw, c.accumulate);
      return {{"dw", dw}};
    });
  }
}

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

TEST(GpuLinear, MatchesTheReferenceInEveryShape) {
  constexpr int64_t kShapes[][3] = {{1, 1, 1},     {3, 5, 7},     {17, 64, 40},
                                    {130, 96, 72}, {64, 33, 300}, {2, 300, 65}};
  for (const auto& [T, N, K] : kShapes)
    for (const bool accumulate : {false, true})
      expect_all_passes({.T = T, .N = N, .K = K, .x = kF32, .y = kF32, .accumulate = accumulate});
}

TEST(GpuLinear, TakesAnyTypesAndColumnsOfWiderMatrices) {
  for (const DType x : {kF32, kBF16})
    for (const DType y : {kF32, kBF16})
      for (const int64_t beside : {0, 3, 8})
        expect_all_passes({.T = 19,
                           .N = 24,
                           .K = 16,
                           .x = x,
                           .y = y,
                           .beside = beside,
                           .accumulate = beside == 8});
}

TEST(GpuLinear, NoTokensLeaveGradientsOrClearThem) {
  for (const bool accumulate : {false, true})
    expect_all_passes({.T = 0, .N = 5, .K = 7, .x = kF32, .y = kF32, .accumulate = accumulate});
}

TEST(GpuLinear, RoundsOperandsInFp32) {
  Bench bench({kF32, kF32});
  Place p(gpu::kOps, bench, kProductWorkspaceBytes);
  const DenseCase c{.T = 6, .N = 5, .K = 33, .x = kF32, .y = kF32};
  const Tensor exact = p.random(kF32, "x", {c.T, c.K}), rounded = p.unset(kBF16, {c.T, c.K});
  p.edit<float>(exact, [&](float* v) {
    for (int64_t i = 0; i < exact.numel(); ++i) v[i] /= 3;
  });
  copy(p.context(), exact, rounded);
  Operand w{p.random(kF32, "w", {c.N, c.K}), p.unset(kBF16, {c.N * c.K}), {}};
  pack(p.context(), w);
  const Tensor one = p.unset(kF32, {c.T, c.N}), other = p.unset(kF32, {c.T, c.N});
  linear_forward(p.context(), kBF16, Matrix::of(exact), w, Matrix::of(one));
  linear_forward(p.context(), kBF16, Matrix::of(rounded), w, Matrix::of(other));
  EXPECT_EQ(values_of(one), values_of(other));
}

}  // namespace
}  // namespace ashlar::kernels
