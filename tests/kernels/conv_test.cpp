#include "ashlar/kernels/conv.h"

#include "tests/kernels/kernel_case.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

struct ConvLayer {
  Bench& b;
  int64_t T, C;
  Tensor projection, halo, w0, b0, columns;
  ConvLayer(Bench& bench, const Sequence& s, int64_t channels)
      : b(bench), T(s.num_tokens()), C(channels) {
    projection = b.product("z", {T, C + kOtherColumns});
    halo = b.stream("halo", {s.num_halos(), 2, C});
    w0 = b.stream("w0", {C, 1, 2}), b0 = b.stream("b0", {C}), columns = b.product({T, 2 * C});
  }
  Matrix z() const { return z_of(projection); }
  Matrix z_of(const Tensor& t) const { return {t.data, t.dtype, T, C, C + kOtherColumns}; }
  void forward(const Sequence& s) {
    conv_columns_forward(
        b.context(),
        {.sequence = s, .z_TC = z(), .halo_z = halo, .w0_C2 = w0, .b0_C = b0, .columns = columns});
  }
};

// The definition: a document's z before its start is 0, u before its start is b0.
TEST(Conv, ColumnsFormula) {
  for (const auto& pieces : segment_cases()) {
    const Sequence s = sequence_of(pieces);
    Bench b;
    ConvLayer l(b, s, 5);
    l.forward(s);
    int64_t row = 0, halo = -1;
    for (const Piece& piece : pieces) {
      halo += piece.position > 0;
      const auto z = [&](int64_t step, int64_t c) -> double {  // step: from the piece's first token
        if (piece.position + step < 0) return 0;
        if (step < 0) return l.halo.as<double>()[(halo * 2 + 2 + step) * l.C + c];
        return l.projection.as<double>()[(row + step) * (l.C + kOtherColumns) + c];
      };
      const auto u = [&](int64_t step, int64_t c) {
        const double* w = l.w0.as<double>() + 2 * c;
        const double bias = l.b0.as<double>()[c];
        return piece.position + step < 0 ? bias : bias + w[0] * z(step - 1, c) + w[1] * z(step, c);
      };
      for (int64_t i = 0; i < piece.length; ++i)
        for (int64_t c = 0; c < l.C; ++c) {
          ASSERT_NEAR(l.columns.as<double>()[(row + i) * 2 * l.C + 2 * c], u(i - 1, c), 1e-14);
          ASSERT_NEAR(l.columns.as<double>()[(row + i) * 2 * l.C + 2 * c + 1], u(i, c), 1e-14);
        }
      row += piece.length;
    }
  }
}

TEST(Conv, Gradients) {
  for (const auto& pieces : segment_cases()) {
    const Sequence s = sequence_of(pieces);
    if (s.num_tokens() > 20) continue;  // the short ones have every kind of border
    Bench b;
    ConvLayer l(b, s, 3);
    const Tensor dcolumns = b.stream("dcolumns", l.columns.shape), dz = b.stream({l.T, l.C}),
                 dhalo = b.stream(l.halo.shape);
    const Tensor dw0 = b.stream(l.w0.shape), db0 = b.stream(l.b0.shape);
    conv_columns_backward(b.context(), {.sequence = s,
                                        .dcolumns = dcolumns,
                                        .z_TC = l.z(),
                                        .halo_z = l.halo,
                                        .w0_C2 = l.w0,
                                        .b0_C = l.b0,
                                        .dz_TC = Matrix::of(dz),
                                        .dhalo_z = dhalo,
                                        .dw0_C2 = dw0,
                                        .db0_C = db0});
    const auto loss = [&] {
      l.forward(s);
      return dot(l.columns, dcolumns);
    };
    std::vector<double> dprojection;  // zero outside z
    for (int64_t t = 0; t < l.T; ++t)
      for (int64_t c = 0; c < l.C + kOtherColumns; ++c)
        dprojection.push_back(c < l.C ? dz.as<double>()[t * l.C + c] : 0);
    expect_gradient("dz", l.projection, dprojection, loss);
    expect_gradient("dhalo", l.halo, values_of(dhalo), loss);
    expect_gradient("dw0", l.w0, values_of(dw0), loss);
    expect_gradient("db0", l.b0, values_of(db0), loss);
  }
}

TEST(Conv, Paths) {
  for (const auto& pieces : segment_cases())
    for (const int64_t C : {1, 7, 40}) {
      const Sequence s = sequence_of(pieces);
      expect_paths_agree(
          fmt::format("T={} C={}", s.num_tokens(), C), [&](Bench& b) -> std::vector<Output> {
            ConvLayer l(b, s, C);
            l.forward(s);
            const Tensor dprojection = b.product("dz", l.projection.shape),
                         dhalo = b.stream(l.halo.shape);
            const Tensor dw0 = b.stream("dw0", l.w0.shape), db0 = b.stream("db0", l.b0.shape);
            conv_columns_backward(b.context(), {.sequence = s,
                                                .dcolumns = b.product("dcolumns", l.columns.shape),
                                                .z_TC = l.z(),
                                                .halo_z = l.halo,
                                                .w0_C2 = l.w0,
                                                .b0_C = l.b0,
                                                .dz_TC = l.z_of(dprojection),
                                                .dhalo_z = dhalo,
                                                .dw0_C2 = dw0,
                                                .db0_C = db0});
            return {{"columns", l.columns},
                    {"dz", dprojection},
                    {"dhalo", dhalo},
                    {"dw0", dw0},
                    {"db0", db0}};
          });
    }
}

}  // namespace
}  // namespace ashlar::kernels
