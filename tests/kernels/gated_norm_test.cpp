#include "ashlar/kernels/gated_norm.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

constexpr double kNormEps = 1e-5;
constexpr OutputGate kGates[] = {OutputGate::kNone, OutputGate::kSigmoid, OutputGate::kSilu};

double gate_of(OutputGate gate, double z) {
  if (gate == OutputGate::kNone) return 1;
  return (gate == OutputGate::kSilu ? z : 1) / (1 + std::exp(-z));
}

struct GatedNormLayer {
  Bench& b;
  GatedNormShape s;
  int64_t T, width;
  Tensor x, squares, w, product, y;
  Tensor dy, dots, dx, dproduct, dw;
  GatedNormLayer(Bench& bench, const GatedNormShape& shape, int64_t num_tokens)
      : b(bench), s(shape), T(num_tokens), width(s.G * s.D) {
    x = b.stream("x", {T, width}), squares = b.stream({T, s.G}), dots = b.stream({T, s.G});
    w = b.stream("w", {s.shared_weight ? s.D : width}, 1), dw = b.stream(w.shape);
    product = b.product("z", {T, width + kOtherColumns}), dproduct = b.product(product.shape);
    y = b.product({T, width}), dy = b.product("dy", {T, width}), dx = b.stream(x.shape);
  }
  Matrix gate(const Tensor& t) const {
    return s.gate == OutputGate::kNone ? Matrix{} : Matrix::of(t).columns(0, width);
  }
  void sum_squares() { gated_norm_squares(b.context(), s, x, squares); }
  void forward() {
    gated_norm_forward(
        b.context(),
        {.shape = s, .x = x, .squares_TG = squares, .w = w, .z = gate(product), .y = y});
  }
  GatedNormBackward arguments() const {
    return {.shape = s,
            .x = x,
            .squares_TG = squares,
            .w = w,
            .z = gate(product),
            .dy = dy,
            .dots_TG = dots,
            .dx = dx,
            .dz = gate(dproduct),
            .dw = dw};
  }
  void sum_dots() { gated_norm_dots(b.context(), arguments()); }
  void backward() { gated_norm_backward(b.context(), arguments()); }
};

// Heads with a weight in common and with their own; one group of all channels, whole and cut.
std::vector<GatedNormShape> shapes(int64_t G, int64_t D) {
  std::vector<GatedNormShape> result;
  for (const OutputGate gate : kGates) {
    result.push_back({G, D, D, true, kNormEps, gate});
    result.push_back({G, D, D, false, kNormEps, gate});
    result.push_back({1, G * D, G * D, false, kNormEps, gate});
    result.push_back({1, G * D, 2 * G * D, false, kNormEps, gate});
  }
  return result;
}
std::string name_of(const GatedNormShape& s) {
  return fmt::format("G={} D={} of {} shared {} gate {}", s.G, s.D, s.mean_over, s.shared_weight,
                     int(s.gate));
}

TEST(GatedNorm, Formula) {
  for (const GatedNormShape& s : shapes(3, 5)) {
    Bench b;
    GatedNormLayer l(b, s, 17);
    l.sum_squares(), l.forward();
    for (int64_t t = 0; t < l.T; ++t)
      for (int64_t g = 0; g < s.G; ++g) {
        const double* x = l.x.as<double>() + t * l.width + g * s.D;
        const double* z = l.product.as<double>() + t * (l.width + kOtherColumns) + g * s.D;
        double sum = 0;
        for (int64_t i = 0; i < s.D; ++i) sum += x[i] * x[i];
        ASSERT_NEAR(l.squares.as<double>()[t * s.G + g], sum, 1e-14);
        const double rstd = 1 / std::sqrt(sum / double(s.mean_over) + kNormEps);
        for (int64_t i = 0; i < s.D; ++i) {
          const double w = l.w.as<double>()[s.shared_weight ? i : g * s.D + i];
          ASSERT_NEAR(l.y.as<double>()[t * l.width + g * s.D + i],
                      w * x[i] * rstd * gate_of(s.gate, z[i]), 1e-13)
              << name_of(s);
        }
      }
  }
}

TEST(GatedNorm, Gradients) {
  for (const GatedNormShape& s : shapes(2, 4)) {
    Bench b;
    GatedNormLayer l(b, s, 3);
    const auto loss = [&] {
      l.sum_squares(), l.forward();
      return dot(l.y, l.dy);
    };
    loss();
    l.sum_dots(), l.backward();
    expect_gradient("dx " + name_of(s), l.x, values_of(l.dx), loss, 1e-7);
    expect_gradient("dz " + name_of(s), l.product, values_of(l.dproduct), loss, 1e-7);
    expect_gradient("dw " + name_of(s), l.w, values_of(l.dw), loss, 1e-7);
  }
}

// Columns [begin, end) of every row of `from`.
void take(const Tensor& from, int64_t begin, const Tensor& to) {
  const int64_t rows = to.shape.ndim() == 1 ? 1 : to.shape[0], cols = to.numel() / rows;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < cols; ++i)
      to.as<double>()[t * cols + i] = from.as<double>()[t * (from.numel() / rows) + begin + i];
}

// Two halves of a group whose sums are added up between are the group.
TEST(GatedNorm, HalvesWithSummedSquaresAndDotsAreTheWhole) {
  const int64_t T = 5, half = 6, widths[] = {half, 2 * half};
  for (const OutputGate gate : kGates) {
    Bench b;
    GatedNormLayer whole(b, {1, widths[1], widths[1], false, kNormEps, gate}, T);
    GatedNormLayer low(b, {1, half, widths[1], false, kNormEps, gate}, T), high(b, low.s, T);
    for (int64_t begin = 0; begin < widths[1]; begin += half) {
      const GatedNormLayer& l = begin == 0 ? low : high;
      take(whole.x, begin, l.x), take(whole.w, begin, l.w), take(whole.dy, begin, l.dy);
      take(whole.product, begin, l.product);
    }
    const auto add_up = [&](const Tensor& one, const Tensor& other) {
      for (int64_t t = 0; t < T; ++t)
        one.as<double>()[t] = other.as<double>()[t] = one.as<double>()[t] + other.as<double>()[t];
    };
    for (GatedNormLayer* l : {&whole, &low, &high}) l->sum_squares();
    add_up(low.squares, high.squares);
    for (GatedNormLayer* l : {&whole, &low, &high}) l->forward(), l->sum_dots();
    add_up(low.dots, high.dots);
    for (GatedNormLayer* l : {&whole, &low, &high}) l->backward();
    const auto expect_part = [&](const Tensor& from, int64_t begin, const Tensor& part,
                                 int64_t num_used) {
      const Tensor want = b.stream(part.shape);
      take(from, begin, want);
      for (int64_t i = 0; i < part.numel(); ++i) {
        if (i % part.shape[part.shape.ndim() - 1] >= num_used) continue;
        ASSERT_NEAR(part.as<double>()[i], want.as<double>()[i], 1e-13);
      }
    };
    for (int64_t begin = 0; begin < widths[1]; begin += half) {
      const GatedNormLayer& l = begin == 0 ? low : high;
      expect_part(whole.y, begin, l.y, half), expect_part(whole.dx, begin, l.dx, half);
      expect_part(whole.dproduct, begin, l.dproduct, half);
      expect_part(whole.dw, begin, l.dw, half);
    }
  }
}

TEST(GatedNorm, LargeGatesStayFinite) {
  for (const OutputGate gate : {OutputGate::kSigmoid, OutputGate::kSilu})
    for (const bool reference : {true, false}) {
      Bench b({DType::kF32, DType::kF32}, reference);
      GatedNormLayer l(b, {1, 2, 2, true, 0, gate}, 1);
      std::fill_n(l.x.as<float>(), 2, 2.0f), std::fill_n(l.w.as<float>(), 2, 3.0f);
      std::fill_n(l.dy.as<float>(), 2, 1.0f);
      l.product.as<float>()[0] = 100, l.product.as<float>()[1] = -100;
      l.sum_squares(), l.forward(), l.sum_dots(), l.backward();
      const float open = gate == OutputGate::kSilu ? 100 : 1;
      EXPECT_EQ(l.y.as<float>()[0], 3 * open);
      EXPECT_NEAR(l.y.as<float>()[1], 0, 1e-30);
      EXPECT_EQ(l.dproduct.as<float>()[0], gate == OutputGate::kSilu ? 3 : 0);
      EXPECT_NEAR(l.dproduct.as<float>()[1], 0, 1e-30);
      EXPECT_EQ(l.dw.as<float>()[0], open);
      EXPECT_NEAR(l.dw.as<float>()[1], 0, 1e-30);
    }
}

TEST(GatedNorm, AGateWithoutItsColumnsIsOurBug) {
  Bench b;
  GatedNormLayer l(b, {2, 3, 3, true, kNormEps, OutputGate::kNone}, 1);
  l.s.gate = OutputGate::kSilu;
  const auto forward = [&](const Matrix& z) {
    gated_norm_forward(
        b.context(), {.shape = l.s, .x = l.x, .squares_TG = l.squares, .w = l.w, .z = z, .y = l.y});
  };
  EXPECT_DEATH(forward({}), "z.cols");
  const Matrix z = l.gate(l.product);
  l.s.gate = OutputGate::kNone;
  EXPECT_DEATH(forward(z), "z.cols");
}

TEST(GatedNorm, Paths) {
  for (const int64_t T : {1, 3, 65, 130})
    for (const int64_t D : {1, 7, 16, 40})
      for (const GatedNormShape& s : shapes(3, D))
        expect_paths_agree(fmt::format("T={} {}", T, name_of(s)),
                           [&](Bench& b) -> std::vector<Output> {
                             GatedNormLayer l(b, s, T);
                             l.sum_squares(), l.forward(), l.sum_dots(), l.backward();
                             return {{"squares", l.squares}, {"y", l.y},   {"dots", l.dots},
                                     {"dx", l.dx},           {"dw", l.dw}, {"dz", l.dproduct}};
                           });
}

}  // namespace
}  // namespace ashlar::kernels
