#include "tests/kernels/gpu/op_case.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

// z and its gradient are columns of a fused product, `before` columns from its start.
struct ConvShape {
  int64_t C, before, fused;
};
// One channel, some of a pack, packs that cannot be read as vectors, and vectors; two blocks.
constexpr ConvShape kConvShapes[] = {{1, 0, 1}, {7, 2, 12}, {40, 3, 48}, {40, 8, 64}};

std::vector<Output> run_conv(Place& p, const ConvShape& s, const Sequence& sequence) {
  const int64_t T = sequence.num_tokens();
  const Shape fused{T, s.fused}, halo{sequence.num_halos(), 2, s.C}, C2{s.C, 1, 2}, C{s.C};
  const auto columns_of_z = [&](const Tensor& t) {
    return Matrix::of(t).columns(s.before, s.before + s.C);
  };
  const Tensor z = p.random(p.product(), "z", fused), halo_z = p.random(p.wide(), "halo", halo);
  const Tensor w0 = p.random(p.wide(), "w0", C2), b0 = p.random(p.wide(), "b0", C);
  const Tensor columns = p.unset(p.product(), {T, 2 * s.C});
  kernels::conv_columns_forward(p.context(), {.sequence = sequence,
                                              .z_TC = columns_of_z(z),
                                              .halo_z = halo_z,
                                              .w0_C2 = w0,
                                              .b0_C = b0,
                                              .columns = columns});
  const Tensor dz = p.random(p.product(), "dz", fused), dhalo = p.unset(p.wide(), halo);
  const Tensor dw0 = p.random(p.wide(), "dw0", C2), db0 = p.random(p.wide(), "db0", C);
  kernels::conv_columns_backward(p.context(),
                                 {.sequence = sequence,
                                  .dcolumns = p.random(p.product(), "dcolumns", {T, 2 * s.C}),
                                  .z_TC = columns_of_z(z),
                                  .halo_z = halo_z,
                                  .w0_C2 = w0,
                                  .b0_C = b0,
                                  .dz_TC = columns_of_z(dz),
                                  .dhalo_z = dhalo,
                                  .dw0_C2 = dw0,
                                  .db0_C = db0});
  return {{"columns", columns}, {"dz", dz}, {"dhalo", dhalo}, {"dw0", dw0}, {"db0", db0}};
}

TEST(GpuConv, MatchesTheReferenceInEveryMode) {
  int number = 0;  // of the list of segments
  for (const auto& pieces : segment_cases()) {
    for (const ConvShape& s : kConvShapes)
      for (const DType product : {DType::kF32, DType::kBF16})
        expect_op(fmt::format("conv/{}/{}+{}/{}", number, s.before, s.C, name_of(product)),
                  {DType::kF32, product},
                  [&](Place& p) { return run_conv(p, s, sequence_of(pieces)); });
    ++number;
  }
}

// Channels for two blocks; the border between two blocks of tokens at the start, the second token
// and the third token of a piece.
TEST(GpuConv, CrossesTheBordersOfBlocks) {
  for (const int64_t first : {61, 62, 63, 64})
    expect_op(fmt::format("conv/border/{}", first), {DType::kF32, DType::kF32}, [&](Place& p) {
      return run_conv(p, {520, 0, 520}, sequence_of({{0, first}, {2, 7}}));
    });
}

TEST(GpuConv, OfNoTokenLeavesGradientsAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const std::vector<Output> outputs = run_conv(p, {8, 0, 8}, Sequence(std::vector<Segment>()));
  EXPECT_EQ(values_of(outputs[3].tensor), values_of(p.random(DType::kF32, "dw0", {8, 1, 2})));
  EXPECT_EQ(values_of(outputs[4].tensor), values_of(p.random(DType::kF32, "db0", {8})));
}

}  // namespace
}  // namespace ashlar::kernels
