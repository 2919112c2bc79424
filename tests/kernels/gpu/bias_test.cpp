#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

// Tokens, columns, and the columns of the fused product before those of the bias.
struct BiasCase {
  int64_t T, N, before;
};
// With and without vectors; several blocks of rows, and of columns.
constexpr BiasCase kBiasCases[] = {{1, 1, 0},    {3, 5, 2},    {17, 33, 7},
                                   {65, 64, 64}, {130, 48, 1}, {70, 1032, 8}};

std::vector<Output> run_bias(Place& p, const BiasCase& c) {
  const Shape fused{c.T, c.before + c.N};
  const auto columns = [&](const Tensor& t) {
    return Matrix::of(t).columns(c.before, c.before + c.N);
  };
  const Tensor y = p.random(p.product(), "y", fused), b = p.random(p.wide(), "b", {c.N});
  const Tensor dy = p.random(p.product(), "dy", fused), db = p.random(p.wide(), "db", {c.N});
  kernels::bias_forward(p.context(), b, columns(y));
  kernels::bias_backward(p.context(), columns(dy), db);
  return {{"y", y}, {"db", db}};
}

TEST(GpuBias, MatchesTheReferenceInEveryMode) {
  for (const BiasCase& c : kBiasCases)
    for (const DType product : {DType::kF32, DType::kBF16})
      expect_op(fmt::format("bias/{}x{}/{}", c.T, c.N, name_of(product)), {DType::kF32, product},
                [&](Place& p) { return run_bias(p, c); });
}

TEST(GpuBias, OfNoTokenLeavesItsGradientAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  EXPECT_EQ(values_of(run_bias(p, {0, 8, 3})[1].tensor),
            values_of(p.random(DType::kF32, "db", {8})));
}

}  // namespace
}  // namespace ashlar::kernels
