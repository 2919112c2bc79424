#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

struct TableShape {
  int64_t T, V, H;
};
// One row to several blocks of rows and of columns; ids that come once and ids that come often.
constexpr TableShape kTables[] = {{1, 1, 3}, {33, 5, 7}, {70, 300, 8}, {200, 3, 40}, {3, 9, 1032}};

std::vector<int32_t> some_ids(const TableShape& s) {
  std::vector<int32_t> ids;
  const Rng rng(3, "ids");
  for (int64_t t = 0; t < s.T; ++t) ids.push_back(int32_t(rng.below(uint64_t(t), uint64_t(s.V))));
  return ids;
}

struct Affine {
  Tensor scale, bias, dscale, dbias;
};
Affine some_affine(Place& p, int64_t width, bool plain) {
  if (plain) return {};
  const Shape H{width};
  return {p.random(p.wide(), "scale", H, 1), p.random(p.wide(), "bias", H),
          p.random(p.wide(), "dscale", H), p.random(p.wide(), "dbias", H)};
}

std::vector<Output> run_embedding(Place& p, const TableShape& s, bool plain, int32_t fixed_id) {
  const Tensor ids = p.ints(some_ids(s)), emb = p.random(p.wide(), "emb", {s.V, s.H});
  const Affine affine = some_affine(p, s.H, plain);
  const Tensor x = p.unset(p.stream(), {s.T, s.H});
  kernels::embedding_forward(
      p.context(),
      {.ids_T = ids, .emb_VH = emb, .scale_H = affine.scale, .bias_H = affine.bias, .x_TH = x});
  const Tensor dx = p.random(p.stream(), "dx", {s.T, s.H});
  const Tensor demb = p.random(p.wide(), "demb", {s.V, s.H});
  kernels::embedding_backward(p.context(), {.ids_T = ids,
                                            .emb_VH = emb,
                                            .scale_H = affine.scale,
                                            .bias_H = affine.bias,
                                            .dx_TH = dx,
                                            .demb_VH = demb,
                                            .fixed_id = fixed_id,
                                            .dscale_H = affine.dscale,
                                            .dbias_H = affine.dbias});
  if (plain) return {{"x", x}, {"demb", demb}};
  return {{"x", x}, {"demb", demb}, {"dscale", affine.dscale}, {"dbias", affine.dbias}};
}

TEST(GpuEmbedding, MatchesTheReferenceInEveryMode) {
  for (const TableShape& s : kTables)
    for (const DType stream : {DType::kF32, DType::kBF16})
      for (const bool plain : {true, false})
        expect_op(fmt::format("embedding/{}x{}x{}/{}{}", s.T, s.V, s.H, name_of(stream),
                              plain ? "" : "/affine"),
                  {stream, stream}, [&](Place& p) { return run_embedding(p, s, plain, -1); });
}

TEST(GpuEmbedding, AFixedIdHasNoGradient) {
  expect_op("embedding/33x5x7/fixed", {DType::kF32, DType::kF32}, [&](Place& p) {
    return run_embedding(p, {33, 5, 7}, true, 2);
  });
}

// Rows of one id are added in the order of tokens, as on the CPU.
TEST(GpuEmbedding, HasTheBitsOfTheCpu) {
  for (const TableShape& s : kTables)
    expect_bits_of_cpu(fmt::format("{}x{}x{}", s.T, s.V, s.H),
                       [&](Place& p) -> std::vector<Output> {
                         const std::vector<Output> all = run_embedding(p, s, false, -1);
                         return {all[0], all[1]};  // x and demb
                       },
                       {DType::kF32, DType::kF32});
}

TEST(GpuEmbedding, OfNoTokenLeavesGradientsAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor emb = p.random(DType::kF32, "emb", {3, 8}), none = p.zeros(DType::kF32, {0, 8});
  const Tensor demb = p.random(DType::kF32, "demb", {3, 8});
  const Affine affine = some_affine(p, 8, false);
  const std::vector<double> before = values_of(demb), dscale = values_of(affine.dscale);
  kernels::embedding_forward(p.context(), {.ids_T = p.ints({}), .emb_VH = emb, .x_TH = none});
  kernels::embedding_backward(p.context(), {.ids_T = p.ints({}),
                                            .emb_VH = emb,
                                            .scale_H = affine.scale,
                                            .bias_H = affine.bias,
                                            .dx_TH = none,
                                            .demb_VH = demb,
                                            .dscale_H = affine.dscale,
                                            .dbias_H = affine.dbias});
  EXPECT_EQ(values_of(demb), before);
  EXPECT_EQ(values_of(affine.dscale), dscale);
}

}  // namespace
}  // namespace ashlar::kernels
