// Newton-Schulz: its own passes, and whole calls by the products of the vendor's library.
#include "tests/kernels/gpu/product_case.h"

namespace ashlar::kernels {
namespace {

struct StackDims {
  int64_t G, M, N;
};
constexpr StackDims kDims[] = {{1, 1, 1},    {3, 5, 9},    {2, 9, 5},
                               {1, 40, 100}, {2, 100, 40}, {3, 33, 33}};

std::vector<Output> run_stack(Place& p, const StackDims& d, int steps) {
  const Tensor x = p.random(p.wide(), "x", {d.G, d.M, d.N});
  orthogonalize(p.context(), p.product(), x, steps);
  return {{"x", x}};
}

std::string name_of_stack(const StackDims& d, int steps) {
  return fmt::format("orthogonalize/{}x{}x{}/{}", d.G, d.M, d.N, steps);
}

TEST(GpuNewtonSchulz, ScalesTheSameBitsOnEveryDevice) {
  for (const StackDims& d : {StackDims{1, 1, 1}, StackDims{3, 5, 9}, StackDims{2, 70, 80}})
    expect_product_op(name_of_stack(d, 0), DType::kF32, {kFloatBar},
                      [&](Place& p) { return run_stack(p, d, 0); });
}

// The bars are those of the CPU's paths: rounding for one step in bf16; values near zero, which
// rounding pushes up, for five.
TEST(GpuNewtonSchulz, FollowsTheReferenceInEveryShape) {
  for (const StackDims& d : kDims)
    for (const int steps : {0, 1, 2, 5}) {
      expect_product_op(
          name_of_stack(d, steps), DType::kF32, {{2e-5, 1e-4}},
          [&](Place& p) { return run_stack(p, d, steps); }, Products::kOfLibrary);
      const Bar bf16 = steps <= 1 ? Bar{0.01, 0.02} : Bar{0.1, 0.2};
      expect_product_op(
          name_of_stack(d, steps), DType::kBF16, {bf16},
          [&](Place& p) { return run_stack(p, d, steps); }, Products::kOfLibrary);
    }
}

// Long enough for the way through the Gram matrix in fp32.
TEST(GpuNewtonSchulz, FollowsTheReferenceThroughTheGramMatrix) {
  for (const StackDims& d : {StackDims{2, 16, 200}, StackDims{1, 200, 16}}) {
    EXPECT_TRUE(newton_schulz_uses_gram({}, DType::kF32, d.M, d.N, 5));
    for (const int steps : {1, 2, 5})
      expect_product_op(
          name_of_stack(d, steps), DType::kF32, {{2e-5, 1e-4}},
          [&](Place& p) { return run_stack(p, d, steps); }, Products::kOfLibrary);
  }
}

// The matrices of several stacks, one of them empty, are those that each gives alone.
TEST(GpuNewtonSchulz, StacksOfOneCallAreIndependent) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Bench bench({DType::kF32, compute}, false);
    Place p(gpu::kOps, bench, kProductWorkspaceBytes);
    const Tensor together = p.random(DType::kF32, "x", {6, 20, 12}),
                 alone = p.random(DType::kF32, "x", {6, 20, 12});
    const Tensor stacks[] = {together.slice(0, 1), together.slice(1, 1), together.slice(1, 4),
                             together.slice(4, 6)};
    orthogonalize(p.context(), compute, std::span<const Tensor>(stacks));
    for (int64_t g = 0; g < 6; ++g) orthogonalize(p.context(), compute, alone.slice(g, g + 1));
    EXPECT_EQ(values_of(together), values_of(alone));
  }
}

// 96 MiB a matrix in bf16: five of the 64 at a time, besides sums and the products' own.
TEST(GpuNewtonSchulz, TakesAtMost512MiBForABatch) {
  Bench bench({DType::kF32, DType::kBF16}, false, 1, Device::kMeta);
  Place p(gpu::kOps, bench);
  constexpr int64_t kSide = 4096, kMiB = 1 << 20;
  orthogonalize(p.context(), DType::kBF16, p.zeros(DType::kF32, {64, kSide, kSide}));
  const int64_t sums = 5 * kSide * kSide / 4096 * 8 + 64;
  EXPECT_EQ(bench.taken().peak_bytes(), 5 * 96 * kMiB + sums + 32 * kMiB);
}

}  // namespace
}  // namespace ashlar::kernels
