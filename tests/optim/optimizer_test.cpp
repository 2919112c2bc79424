// AdamW, what is common to both optimizers, and the state as a checkpoint sees it.
#include "ashlar/optim/optimizer.h"

#include <cmath>
#include <limits>

#include "ashlar/kernels/newton_schulz.h"
#include "tests/optim/optim_test_util.h"

namespace ashlar::optim {
namespace {

OptimSpec odd_spec() {
  OptimSpec spec;
  spec.weight_decay = 0.3, spec.beta1 = 0.8, spec.beta2 = 0.9, spec.eps = 1e-3;
  return spec;
}

TEST(AdamW, FirstStepIsTheClosedFormula) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    Machine machine;
    for (const bool decay : {true, false}) {
      const Parameter p = machine.parameter(decay ? "with" : "without", dtype, {37, 3},
                                            OptimizerKind::kAdamW, decay);
      const std::vector<double> before = values_of(p.value);
      const OptimSpec spec = odd_spec();
      Optimizer optimizer(machine.allocator, {p}, spec, dtype);
      const double lr = 0.02, scale = 0.25;
      optimizer.step(machine.ctx, lr, scale);
      EXPECT_EQ(optimizer.num_steps(), 1);
      // m / (1 - b1) is g and v / (1 - b2) is g^2.
      for (int64_t i = 0; i < p.value.numel(); ++i) {
        const double g = scale * get(p.gradient, i), keep = decay ? 1 - lr * 0.3 : 1.0;
        const double expected = keep * before[size_t(i)] - lr * g / (std::abs(g) + 1e-3);
        EXPECT_NEAR(get(p.value, i), expected, dtype == DType::kF64 ? 1e-14 : 3e-7) << i;
      }
    }
  }
}

TEST(AdamW, LaterStepsFollowTheRecurrence) {
  Machine machine;
  const OptimSpec spec = odd_spec();
  const Parameter p = machine.parameter("p", DType::kF64, {23}, OptimizerKind::kAdamW, true);
  Optimizer optimizer(machine.allocator, {p}, spec, DType::kF64);
  std::vector<double> w = values_of(p.value), m(23), v(23);
  for (int t = 1; t <= 7; ++t) {
    Machine::fill(p.gradient, "gradient", uint64_t(t));
    const double lr = 0.01 * t, scale = 1.0 / t;
    optimizer.step(machine.ctx, lr, scale);
    for (size_t i = 0; i < 23; ++i) {
      const double g = get(p.gradient, int64_t(i)) * scale;
      m[i] = 0.8 * m[i] + 0.2 * g;
      v[i] = 0.9 * v[i] + 0.1 * g * g;
      const double m_hat = m[i] / (1 - std::pow(0.8, t)), v_hat = v[i] / (1 - std::pow(0.9, t));
      w[i] = (1 - lr * 0.3) * w[i] - lr * m_hat / (std::sqrt(v_hat) + 1e-3);
      EXPECT_NEAR(get(p.value, int64_t(i)), w[i], 1e-13) << "step " << t << ", element " << i;
    }
  }
}

TEST(Optimizer, GradientNormIsOverAllParameters) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    Machine machine;
    const std::vector<Parameter> list = {
        machine.parameter("a", dtype, {100, 97}, OptimizerKind::kMuon, true),
        machine.parameter("b", dtype, {5}, OptimizerKind::kAdamW, false),
        machine.parameter("c", dtype, {1}, OptimizerKind::kAdamW, false)};
    Optimizer optimizer(machine.allocator, list, {}, dtype);
    double sum = 0.0;
    for (const Parameter& p : list)
      for (const double g : values_of(p.gradient)) sum += g * g;
    EXPECT_NEAR(optimizer.gradient_squares(machine.ctx), sum, 1e-6 * sum);
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      set(list[1].gradient, 3, bad);
      EXPECT_FALSE(std::isfinite(optimizer.gradient_squares(machine.ctx)));
    }
  }
}

// A tensor that several ranks keep is in the norm once: that of the first of them.
TEST(Optimizer, CopiesAreLeftOutOfTheNorm) {
  Machine machine;
  std::vector<Parameter> list = {
      machine.parameter("a", DType::kF64, {9}, OptimizerKind::kAdamW, true),
      machine.parameter("b", DType::kF64, {5}, OptimizerKind::kAdamW, true)};
  list[1].copy = 1, list[1].num_copies = 2;
  double sum = 0.0;
  for (const double g : values_of(list[0].gradient)) sum += g * g;
  EXPECT_DOUBLE_EQ(
      Optimizer(machine.allocator, list, {}, DType::kF64).gradient_squares(machine.ctx), sum);
}

TEST(Optimizer, ClippingBringsTheNormToTheBound) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(1.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(1.25, 1.0), 0.8);
  EXPECT_EQ(clip_factor(4.0, 1.0), 0.25);
  EXPECT_EQ(clip_factor(4.0, 0.0), 1.0);  // no clipping
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
}

// A step with grad_scale c is the step of c times the gradient.
TEST(Optimizer, ScalesGradientsOfBothKindsWhileReading) {
  std::vector<std::vector<double>> results;
  for (const bool scaled : {true, false}) {
    Machine machine;
    const std::vector<Parameter> list = {
        machine.parameter("m", DType::kF64, {4, 6}, OptimizerKind::kMuon, true),
        machine.parameter("v", DType::kF64, {9}, OptimizerKind::kAdamW, false)};
    Optimizer optimizer(machine.allocator, list, odd_spec(), DType::kF64);
    for (int t = 1; t <= 2; ++t) {
      for (const Parameter& p : list) {
        Machine::fill(p.gradient, p.logical.name, uint64_t(t));
        if (scaled) continue;
        for (int64_t i = 0; i < p.gradient.numel(); ++i)
          set(p.gradient, i, get(p.gradient, i) * (0.5 / t));
      }
      optimizer.step(machine.ctx, 0.1, scaled ? 0.5 / t : 1.0);
    }
    std::vector<double>& all = results.emplace_back();
    for (const Parameter& p : list)
      for (const double value : values_of(p.value)) all.push_back(value);
  }
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_NEAR(results[0][i], results[1][i], 1e-12);
}

TEST(Optimizer, StateIsNamedAfterItsParameter) {
  Machine machine;
  const std::vector<Parameter> list = {
      machine.parameter("x.weight", DType::kF32, {2, 6, 4}, OptimizerKind::kMuon, true, 2),
      machine.parameter("x.bias", DType::kF32, {6}, OptimizerKind::kAdamW, false)};
  const Optimizer optimizer(machine.allocator, list, {}, DType::kF32);
  const std::vector<Piece> pieces = optimizer.pieces();
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].logical.name, "optim.momentum.x.weight");
  EXPECT_EQ(pieces[1].logical.name, "optim.exp_avg.x.bias");
  EXPECT_EQ(pieces[2].logical.name, "optim.exp_avg_sq.x.bias");
  for (const Piece& piece : pieces) {
    const Parameter& p = &piece == &pieces[0] ? list[0] : list[1];
    EXPECT_EQ(piece.logical.role, Role::kOptimizerState);
    EXPECT_EQ(piece.logical.dtype, DType::kF32);
    EXPECT_EQ(piece.logical.global_shape, p.logical.global_shape);
    EXPECT_EQ(piece.box, p.boxes[0]);
    EXPECT_EQ(piece.data.shape, p.value.shape);
    for (const double value : values_of(piece.data)) EXPECT_EQ(value, 0.0);
  }
}

// Pieces of tensors: two experts of a stack, and a range of an element-wise tensor.
TEST(Optimizer, PiecesOfTensorsGetTheBitsOfTheWhole) {
  Machine machine;
  const auto list = [&] {
    return std::vector<Parameter>{
        machine.parameter("m", DType::kF32, {5, 17, 12}, OptimizerKind::kMuon, true, 5),
        machine.parameter("v", DType::kF32, {40, 11}, OptimizerKind::kAdamW, true)};
  };
  const std::vector<Parameter> whole = list();
  std::vector<Parameter> parts = list();
  parts[0].boxes = {{{1, 0, 0}, {4, 17, 12}}};  // experts 1 to 4, of which 2 and 3 are kept
  const int64_t begins[] = {2 * 17 * 12, 137}, ends[] = {4 * 17 * 12, 403};
  parts[0].begin = 17 * 12, parts[0].end = 3 * 17 * 12;
  parts[1].begin = begins[1], parts[1].end = ends[1];
  for (size_t i = 0; i < 2; ++i)
    for (Tensor* t : {&parts[i].value, &parts[i].gradient})
      *t = t->view({t->numel()}).slice(begins[i], ends[i]);
  Optimizer one(machine.allocator, whole, {}, DType::kF32);
  Optimizer other(machine.allocator, parts, {}, DType::kF32);
  for (int t = 1; t <= 3; ++t) {
    for (size_t i = 0; i < 2; ++i) {
      Machine::fill(whole[i].gradient, whole[i].logical.name, uint64_t(t));
      std::memcpy(parts[i].gradient.data,
                  whole[i].gradient.data + begins[i] * int64_t(sizeof(float)),
                  size_t(parts[i].gradient.bytes()));
    }
    one.step(machine.ctx, 0.01, 0.5);
    other.step(machine.ctx, 0.01, 0.5);
  }
  const auto expect_part = [](const Tensor& all, const Tensor& part, int64_t begin) {
    EXPECT_EQ(bits_of(part), bits_of(all.view({all.numel()}).slice(begin, begin + part.numel())));
  };
  for (size_t i = 0; i < 2; ++i) expect_part(whole[i].value, parts[i].value, begins[i]);
  const std::vector<Piece> all = one.pieces(), pieces = other.pieces();
  expect_part(all[0].data, pieces[0].data, begins[0]);
  EXPECT_EQ(pieces[0].box, (Box{{2, 0, 0}, {2, 17, 12}}));
  int64_t at = begins[1];
  for (size_t i = 1; i < pieces.size() && pieces[i].logical.name == "optim.exp_avg.v"; ++i) {
    expect_part(all[1].data, pieces[i].data, at);
    at += pieces[i].data.numel();
  }
  EXPECT_EQ(at, ends[1]);
}

// Muon works inside the gradients: the workspace is Newton-Schulz's alone.
TEST(Optimizer, AStepTakesTheWorkspaceOfNewtonSchulz) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16}) {
    const DType dtype = compute == DType::kF64 ? DType::kF64 : DType::kF32;
    Machine machine;
    const std::vector<Parameter> list = {
        machine.parameter("m", dtype, {3, 34, 20}, OptimizerKind::kMuon, true, 3),
        machine.parameter("v", dtype, {1000}, OptimizerKind::kAdamW, false)};
    Arena kernel(Device::kMeta), step(Device::kMeta);
    machine.ctx.device = Device::kMeta;
    machine.ctx.workspace = &kernel;
    kernels::orthogonalize(machine.ctx, compute, list[0].gradient, 5);
    Optimizer optimizer(machine.allocator, list, {}, compute);
    machine.ctx.workspace = &step;
    optimizer.step(machine.ctx, 0.01, 1.0);
    EXPECT_EQ(step.peak_bytes(), kernel.peak_bytes());
  }
}

TEST(Optimizer, RecipeChoosesTheMatrixOptimizer) {
  Machine machine;
  const auto list = [&] {
    return std::vector<Parameter>{
        machine.parameter("l.experts.gate_up_proj", DType::kF32, {3, 8, 4}, OptimizerKind::kMuon,
                          true, 3, 2),
        machine.parameter("l.experts.down_proj", DType::kF32, {3, 4, 4}, OptimizerKind::kMuon, true,
                          3),
        machine.parameter("l.bias", DType::kF32, {4}, OptimizerKind::kAdamW, false)};
  };
  OptimSpec spec;
  std::vector<Parameter> same = list();
  apply_spec(spec, same);
  EXPECT_EQ(same[0].num_matrices, 3);
  EXPECT_EQ(same[0].kind, OptimizerKind::kMuon);

  spec.muon_split_gate_up = true;
  std::vector<Parameter> split = list();
  apply_spec(spec, split);
  EXPECT_EQ(split[0].num_matrices, 6);
  EXPECT_EQ(split[1].num_matrices, 3);
  EXPECT_EQ(split[2].num_matrices, 1);

  spec.matrices = MatrixOptimizer::kAdamW;
  std::vector<Parameter> adamw = list();
  apply_spec(spec, adamw);
  for (const Parameter& p : adamw) EXPECT_EQ(p.kind, OptimizerKind::kAdamW);
  EXPECT_TRUE(adamw[0].decay);
  EXPECT_FALSE(adamw[2].decay);
  const Optimizer optimizer(machine.allocator, adamw, spec, DType::kF32);
  EXPECT_EQ(optimizer.pieces().size(), 6u);
}

// Six steps straight, and three, a new optimizer with the restored state, and three more.
TEST(Optimizer, ContinuesBitForBitFromItsPieces) {
  const auto run = [](int break_after, int num_threads) {
    Machine machine(num_threads);
    const std::vector<Parameter> list = {
        machine.parameter("m", DType::kF32, {2, 33, 20}, OptimizerKind::kMuon, true, 2),
        machine.parameter("v", DType::kF32, {70001}, OptimizerKind::kAdamW, true)};
    auto optimizer = std::make_unique<Optimizer>(machine.allocator, list, OptimSpec{}, DType::kF32);
    for (int t = 0; t < 6; ++t) {
      if (t == break_after) {
        auto next = std::make_unique<Optimizer>(machine.allocator, list, OptimSpec{}, DType::kF32);
        restore(optimizer->pieces(), next->pieces());
        next->set_num_steps(optimizer->num_steps());
        optimizer = std::move(next);
      }
      for (const Parameter& p : list) Machine::fill(p.gradient, p.logical.name, uint64_t(t));
      optimizer->step(machine.ctx, 0.01, 0.5);
    }
    return bits_of(list[0].value) + bits_of(list[1].value);
  };
  const std::string straight = run(-1, 2);
  EXPECT_TRUE(run(3, 2) == straight);
  EXPECT_TRUE(run(1, 2) == straight);
  EXPECT_TRUE(run(-1, 3) == straight);  // nor do the bits depend on the number of threads
}

}  // namespace
}  // namespace ashlar::optim
