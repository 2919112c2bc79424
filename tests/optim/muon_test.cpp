// Muon against a second implementation in double, written for clarity only.
#include <cmath>

#include "ashlar/optim/optimizer.h"
#include "tests/optim/optim_test_util.h"

namespace ashlar::optim {
namespace {

struct Matrix {
  int64_t rows, cols;
  std::vector<double> at;
  double& operator()(int64_t i, int64_t j) { return at[size_t(i * cols + j)]; }
  double operator()(int64_t i, int64_t j) const { return at[size_t(i * cols + j)]; }
};

Matrix zeros(int64_t rows, int64_t cols) {
  return {rows, cols, std::vector<double>(size_t(rows * cols))};
}
Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c = zeros(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < b.cols; ++j)
      for (int64_t k = 0; k < a.cols; ++k) c(i, j) += a(i, k) * b(k, j);
  return c;
}
Matrix transposed(const Matrix& a) {
  Matrix t = zeros(a.cols, a.rows);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) t(j, i) = a(i, j);
  return t;
}
Matrix mixed(double x, const Matrix& a, double y, const Matrix& b) {
  Matrix c = a;
  for (size_t i = 0; i < c.at.size(); ++i) c.at[i] = x * a.at[i] + y * b.at[i];
  return c;
}

// a X + b X X^T X + c (X X^T)^2 X, five times, on X over its Frobenius norm.
Matrix newton_schulz(Matrix x, int64_t steps) {
  if (x.rows > x.cols) return transposed(newton_schulz(transposed(x), steps));
  double norm = 0.0;
  for (const double value : x.at) norm += value * value;
  x = mixed(1.0 / (std::sqrt(norm) + 1e-7), x, 0.0, x);
  for (int64_t s = 0; s < steps; ++s) {
    const Matrix gram_x = times(times(x, transposed(x)), x);
    x = mixed(1.0, mixed(3.4445, x, -4.7750, gram_x), 2.0315,
              times(times(x, transposed(x)), gram_x));
  }
  return x;
}

struct MuonCase {
  const char* name;
  Shape shape;
  int64_t num_matrices = 1;
  bool split = false, nesterov = true, decay = true;
  int64_t steps = 5;
};

class MuonTest : public testing::TestWithParam<MuonCase> {};

// Three updates of one parameter; returns it and what the second implementation makes of it.
void expect_updates(const MuonCase& c, DType dtype, DType compute, double tolerance) {
  Machine machine;
  OptimSpec spec;
  spec.muon_momentum = 0.9, spec.muon_nesterov = c.nesterov, spec.muon_scale = 0.3;
  spec.muon_steps = c.steps, spec.muon_split_gate_up = c.split, spec.weight_decay = 0.2;
  std::vector<Parameter> list = {machine.parameter(
      "experts.gate_up_proj", dtype, c.shape, OptimizerKind::kMuon, c.decay, c.num_matrices, 2)};
  apply_spec(spec, list);
  const Parameter& p = list[0];
  Optimizer optimizer(machine.allocator, list, spec, compute);
  const int64_t M = c.split ? 2 * c.num_matrices : c.num_matrices;
  const int64_t cols = c.shape[c.shape.ndim() - 1], rows = c.shape.numel() / cols / M;
  std::vector<double> w = values_of(p.value), momentum(w.size());
  for (int t = 1; t <= 3; ++t) {
    Machine::fill(p.gradient, "gradient", uint64_t(t));
    const double lr = 0.05 * t, scale = 0.5;
    const std::vector<double> gradient = values_of(p.gradient);  // the step consumes it
    optimizer.step(machine.ctx, lr, scale);
    for (int64_t m = 0; m < M; ++m) {
      Matrix x = zeros(rows, cols);
      const size_t begin = size_t(m * rows * cols);
      for (size_t i = 0; i < x.at.size(); ++i) {
        const double g = gradient[begin + i] * scale;
        double& mu = momentum[begin + i];
        mu = 0.9 * mu + g;
        x.at[i] = c.nesterov ? g + 0.9 * mu : mu;
      }
      x = newton_schulz(x, c.steps);
      const double lambda = lr * 0.3 * std::sqrt(double(std::max(rows, cols)));
      for (size_t i = 0; i < x.at.size(); ++i)
        w[begin + i] = (c.decay ? 1 - lr * 0.2 : 1.0) * w[begin + i] - lambda * x.at[i];
    }
    for (size_t i = 0; i < w.size(); ++i)
      ASSERT_NEAR(get(p.value, int64_t(i)), w[i], tolerance * lr)
          << "step " << t << ", element " << i;
  }
  const std::vector<double> state = values_of(optimizer.pieces()[0].data);
  for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(state[i], momentum[i], 1e-5);
}

TEST_P(MuonTest, FollowsTheFormula) {
  expect_updates(GetParam(), DType::kF64, DType::kF64, 1e-10);
  expect_updates(GetParam(), DType::kF32, DType::kF32, 1e-3);
}

// The step is about 0.3 an element at rate 1; bf16 products leave some 2 hundredths of error.
TEST_P(MuonTest, Bf16ProductsStayClose) {
  expect_updates(GetParam(), DType::kF32, DType::kBF16, 0.05);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MuonTest,
    testing::Values(MuonCase{"wide", {5, 9}}, MuonCase{"tall", {9, 5}}, MuonCase{"square", {8, 8}},
                    MuonCase{"row", {1, 7}}, MuonCase{"column", {7, 1}}, MuonCase{"odd", {33, 70}},
                    MuonCase{"experts", {3, 10, 6}, 3}, MuonCase{"experts_together", {2, 16, 5}, 2},
                    MuonCase{"experts_split", {2, 16, 5}, 2, true},
                    MuonCase{"experts_split_wide", {3, 6, 8}, 3, true},
                    MuonCase{"plain_momentum", {4, 6}, 1, false, false},
                    MuonCase{"no_decay", {4, 6}, 1, false, true, false},
                    MuonCase{"one_iteration", {4, 6}, 1, false, true, true, 1}),
    [](const auto& info) { return std::string(info.param.name); });

// Matrices whose result is known to nine digits, computed apart from this program: w = 0 and no
// momentum yet, so that the step is -lambda NS(g).
TEST(Muon, KnownMatrices) {
  struct Known {
    Shape shape;
    std::vector<double> g, expected;
  };
  const double I = 1.108111210;
  const std::vector<Known> known = {
      {{2, 2}, {1, 2, 3, 4}, {-0.680660990, 0.825539610, 0.741295418, 0.259440027}},
      {{2, 3},
       {1, 2, 3, 4, 5, 6},
       {-0.568290110, 0.057741943, 0.683773996, 0.563354698, 0.405612831, 0.247870965}},
      {{3, 2},
       {1, 4, 2, 5, 3, 6},
       {-0.568290110, 0.563354698, 0.057741943, 0.405612831, 0.683773996, 0.247870965}},
      {{2, 2}, {1, 0, 0, 1}, {I, 0, 0, I}}};
  for (const Known& k : known) {
    Machine machine;
    const Parameter p = machine.parameter("p", DType::kF64, k.shape, OptimizerKind::kMuon, true);
    for (int64_t i = 0; i < p.value.numel(); ++i) {
      set(p.value, i, 0.0);
      set(p.gradient, i, k.g[size_t(i)]);
    }
    OptimSpec spec;
    spec.muon_nesterov = false;
    Optimizer optimizer(machine.allocator, {p}, spec, DType::kF64);
    optimizer.step(machine.ctx, 6e-4, 1.0);
    const double lambda = 6e-4 * 0.2 * std::sqrt(double(std::max(k.shape[0], k.shape[1])));
    for (int64_t i = 0; i < p.value.numel(); ++i)
      EXPECT_NEAR(-get(p.value, i) / lambda, k.expected[size_t(i)], 2e-8) << i;
  }
}

// lambda / eta of the reference shapes: 12.8 for 4096 x 2048, 9.05097 for 2048 x 2048.  A gradient
// with one element has NS = s(1), the fixed scalar 0.696436 of five steps, at that element.
TEST(Muon, StepsHaveTheSizeOfAdamW) {
  const std::vector<std::pair<Shape, double>> shapes = {
      {{4096, 16}, 12.8}, {{16, 2048}, 9.05097}, {{2048, 8}, 9.05097}};
  for (const auto& [shape, ratio] : shapes) {
    Machine machine;
    const Parameter p = machine.parameter("p", DType::kF64, shape, OptimizerKind::kMuon, false);
    fill_zero(p.value);
    fill_zero(p.gradient);
    set(p.gradient, shape[1] + 1, -5.0);
    Optimizer optimizer(machine.allocator, {p}, {}, DType::kF64);
    optimizer.step(machine.ctx, 1e-3, 1.0);
    EXPECT_NEAR(get(p.value, shape[1] + 1), 1e-3 * ratio * 0.696436, 1e-7);
    EXPECT_NEAR(get(p.value, 0), 0.0, 1e-15);
  }
}

}  // namespace
}  // namespace ashlar::optim
