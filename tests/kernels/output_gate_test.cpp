#include "ashlar/kernels/output_gate.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Tokens, channels, and the columns of the fused projection before the gate's.
struct OutputGateCase {
  int64_t T, C, before;
};
constexpr OutputGateCase kOutputGateCases[] = {
    {1, 1, 0}, {3, 5, 2}, {17, 33, 7}, {65, 64, 64}, {130, 48, 1}};

struct OutputGateLayer {
  Bench& b;
  OutputGateCase c;
  Tensor att, fused, y;
  OutputGateLayer(Bench& bench, const OutputGateCase& shape) : b(bench), c(shape) {
    att = b.product("att", {c.T, c.C}), y = b.product({c.T, c.C});
    fused = b.product("fused", {c.T, c.before + c.C});
  }
  Matrix gate_of(const Tensor& whole) const {
    return Matrix::of(whole).columns(c.before, c.before + c.C);
  }
  void forward() const { output_gate_forward(b.context(), att, gate_of(fused), y); }
  void backward(const Tensor& dy, const Tensor& datt, const Tensor& dfused) const {
    output_gate_backward(
        b.context(),
        {.dy = dy, .att = att, .gate = gate_of(fused), .datt = datt, .dgate = gate_of(dfused)});
  }
};

TEST(OutputGate, Formula) {
  for (const OutputGateCase& c : kOutputGateCases) {
    Bench b;
    const OutputGateLayer l(b, c);
    l.forward();
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t i = 0; i < c.C; ++i) {
        const double gate = l.fused.as<double>()[t * (c.before + c.C) + c.before + i];
        ASSERT_NEAR(l.y.as<double>()[t * c.C + i],
                    l.att.as<double>()[t * c.C + i] / (1 + std::exp(-gate)), 1e-15);
      }
  }
}

TEST(OutputGate, Gradients) {
  Bench b;
  const OutputGateLayer l(b, {3, 5, 2});
  const Tensor dy = b.stream("dy", l.y.shape), datt = b.stream(l.att.shape);
  const Tensor dfused = b.stream(l.fused.shape);  // of columns before the gate's: 0
  const auto loss = [&] {
    l.forward();
    return dot(l.y, dy);
  };
  copy_convert(dy, datt);
  l.backward(datt, datt, dfused);
  expect_gradient("datt", l.att, values_of(datt), loss);
  expect_gradient("dfused", l.fused, values_of(dfused), loss);
}

TEST(OutputGate, Paths) {
  for (const OutputGateCase& c : kOutputGateCases)
    expect_paths_agree(fmt::format("T={} C={} before={}", c.T, c.C, c.before),
                       [&](Bench& b) -> std::vector<Output> {
                         const OutputGateLayer l(b, c);
                         l.forward();
                         const Tensor datt = b.product(l.att.shape),
                                      dfused = b.product(l.fused.shape);
                         l.backward(b.product("dy", l.y.shape), datt, dfused);
                         return {{"y", l.y}, {"datt", datt}, {"dfused", dfused}};
                       });
}

}  // namespace
}  // namespace ashlar::kernels
