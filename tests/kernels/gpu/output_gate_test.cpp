#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

// Tokens, channels, and the columns of the fused projection before the gate's.
struct GateCase {
  int64_t T, C, before;
};
// With and without vectors; several blocks.
constexpr GateCase kGateCases[] = {{0, 8, 1},   {1, 1, 0},    {3, 5, 2},
                                   {17, 33, 7}, {65, 64, 64}, {33, 1032, 8}};

std::vector<Output> run_gate(Place& p, const GateCase& c, bool in_place) {
  const Shape TC{c.T, c.C}, fused{c.T, c.before + c.C};
  const auto gate_of = [&](const Tensor& t) {
    return Matrix::of(t).columns(c.before, c.before + c.C);
  };
  const Tensor att = p.random(p.product(), "att", TC), dy = p.random(p.product(), "dy", TC);
  const Tensor gate = p.random(p.product(), "gate", fused, 1);
  // The columns before the gate's are left alone.
  const Tensor dgate = p.random(p.product(), "dgate", fused);
  const Tensor datt = in_place ? dy : p.unset(p.product(), TC);
  kernels::output_gate_backward(
      p.context(),
      {.dy = dy, .att = att, .gate = gate_of(gate), .datt = datt, .dgate = gate_of(dgate)});
  const Tensor y = in_place ? att : p.unset(p.product(), TC);
  kernels::output_gate_forward(p.context(), att, gate_of(gate), y);
  return {{"y", y}, {"datt", datt}, {"dgate", dgate}};
}

TEST(GpuOutputGate, MatchesTheReferenceInEveryMode) {
  for (const GateCase& c : kGateCases)
    for (const DType product : {DType::kF32, DType::kBF16})
      for (const bool in_place : {false, true})
        expect_op(fmt::format("output_gate/{}x{}/{}{}", c.T, c.C, name_of(product),
                              in_place ? "/in_place" : ""),
                  {DType::kF32, product}, [&](Place& p) { return run_gate(p, c, in_place); });
}

}  // namespace
}  // namespace ashlar::kernels
