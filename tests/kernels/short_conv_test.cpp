#include "ashlar/kernels/short_conv.h"

#include <limits>

#include "tests/kernels/kernel_case.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

struct ShortConvLayer {
  Bench& b;
  const Sequence& sequence;
  int64_t T, C, taps;
  Tensor product, halo, w, y;
  Tensor dproduct, dhalo, dw;
  ShortConvLayer(Bench& bench, const Sequence& s, int64_t channels, int64_t num_taps)
      : b(bench), sequence(s), T(s.num_tokens()), C(channels), taps(num_taps) {
    product = b.product("x", {T, C + kOtherColumns}),
    halo = b.stream("halo", {s.num_halos(), taps - 1, C});
    w = b.stream("w", {C, 1, taps}), y = b.product({T, C});
    dproduct = b.product({T, C + kOtherColumns}), dhalo = b.stream("old", halo.shape);
    dw = b.stream("dw", w.shape);
  }
  Matrix columns(const Tensor& t) const { return Matrix::of(t).columns(1, C + 1); }
  double& x_at(int64_t t, int64_t c) const {
    return product.as<double>()[t * (C + kOtherColumns) + 1 + c];
  }
  double& dx_at(int64_t t, int64_t c) const {
    return dproduct.as<double>()[t * (C + kOtherColumns) + 1 + c];
  }
  // Row `before` tokens before the segment that halo number `number` belongs to.
  double* halo_row(const Tensor& t, int64_t number, int64_t before) const {
    return t.as<double>() + (number * (taps - 1) + taps - 1 - before) * C;
  }
  void forward() {
    short_conv_forward(
        b.context(),
        {.sequence = sequence, .x_TC = columns(product), .halo = halo, .w_C1W = w, .y_TC = y});
  }
  void backward(const Tensor& dy) {
    short_conv_backward(b.context(), {.sequence = sequence,
                                      .x_TC = columns(product),
                                      .halo = halo,
                                      .w_C1W = w,
                                      .dy_TC = dy,
                                      .dx_TC = columns(dproduct),
                                      .dhalo = dhalo,
                                      .dw = dw});
  }
};

TEST(ShortConv, Formula) {
  for (const auto& pieces : segment_cases())
    for (const int64_t taps : {2, 3, 4, 8}) {
      const Sequence s = sequence_of(pieces);
      Bench b;
      ShortConvLayer l(b, s, 5, taps);
      l.forward();
      int64_t row = 0, halo = -1;
      for (const Piece& piece : pieces) {
        halo += piece.position > 0;
        // step: counted from the piece's first token
        const auto x = [&](int64_t step, int64_t c) -> double {
          if (piece.position + step < 0) return 0;
          return step < 0 ? l.halo_row(l.halo, halo, -step)[c] : l.x_at(row + step, c);
        };
        for (int64_t t = 0; t < piece.length; ++t)
          for (int64_t c = 0; c < l.C; ++c) {
            double sum = 0;
            for (int64_t i = 0; i < taps; ++i)
              sum += l.w.as<double>()[c * taps + i] * x(t - (taps - 1) + i, c);
            ASSERT_NEAR(l.y.as<double>()[(row + t) * l.C + c], silu(sum), 1e-14);
          }
        row += piece.length;
      }
    }
}

TEST(ShortConv, Gradients) {
  for (const auto& pieces : segment_cases())
    for (const int64_t taps : {2, 3, 4, 8}) {
      const Sequence s = sequence_of(pieces);
      if (s.num_tokens() > 20) continue;  // the short ones have every kind of border
      Bench b;
      ShortConvLayer l(b, s, 3, taps);
      const Tensor dy = b.stream("dy", l.y.shape);
      std::fill_n(l.dw.as<double>(), l.dw.numel(), 0);
      l.backward(dy);
      const auto loss = [&] {
        l.forward();
        return dot(l.y, dy);
      };
      expect_gradient("dx", l.product, values_of(l.dproduct), loss, 1e-7);  // 0 outside x
      expect_gradient("dhalo", l.halo, values_of(l.dhalo), loss, 1e-7);
      expect_gradient("dw", l.w, values_of(l.dw), loss, 1e-7);
    }
}

// A document in pieces shorter than the taps: rows of a halo are tokens of the piece before, and of
// the halo of that.  Rows from before the document are NaN, as nobody may read them.
TEST(ShortConv, PiecesOfADocumentAreTheDocument) {
  const std::vector<Piece> pieces = {{0, 1}, {1, 2}, {3, 1}, {4, 3}, {7, 1}, {8, 1}, {9, 5}};
  const Sequence whole = sequence_of({{0, 14}}), cut = sequence_of(pieces);
  for (const int64_t taps : {2, 3, 4, 8}) {
    Bench b;
    ShortConvLayer l(b, whole, 3, taps), r(b, cut, 3, taps);
    const Tensor dy = b.stream("dy", l.y.shape);
    for (int64_t p = 1; p < int64_t(pieces.size()); ++p)
      for (int64_t before = 1; before < taps; ++before)
        for (int64_t c = 0; c < l.C; ++c) {
          const int64_t t = pieces[size_t(p)].position - before;
          r.halo_row(r.halo, p - 1, before)[c] =
              t < 0 ? std::numeric_limits<double>::quiet_NaN() : r.x_at(t, c);
        }
    l.forward(), r.forward();
    EXPECT_EQ(values_of(r.y), values_of(l.y));
    l.backward(dy), r.backward(dy);
    for (int64_t p = 1; p < int64_t(pieces.size()); ++p)
      for (int64_t before = 1; before < taps; ++before)
        for (int64_t c = 0; c < l.C; ++c) {
          const double dhalo = r.halo_row(r.dhalo, p - 1, before)[c];
          const int64_t t = pieces[size_t(p)].position - before;
          if (t < 0)
            ASSERT_EQ(dhalo, 0);
          else
            r.dx_at(t, c) += dhalo;
        }
    for (int64_t t = 0; t < l.T; ++t)
      for (int64_t c = 0; c < l.C; ++c) ASSERT_NEAR(r.dx_at(t, c), l.dx_at(t, c), 1e-13);
    for (int64_t i = 0; i < l.dw.numel(); ++i)
      ASSERT_NEAR(r.dw.as<double>()[i], l.dw.as<double>()[i], 1e-13);
  }
}

TEST(ShortConv, LargeInputsStayFinite) {
  const Sequence s = sequence_of({{0, 4}});
  Bench b({DType::kF32, DType::kF32}, false);
  ShortConvLayer l(b, s, 2, 2);
  const Tensor dy = b.stream("dy", l.y.shape, 2);
  for (int64_t t = 0; t < l.T; ++t)
    for (int64_t i = 0; i < l.C + kOtherColumns; ++i)
      l.product.as<float>()[t * (l.C + kOtherColumns) + i] = i % 2 ? 100 : -100;
  std::fill_n(l.w.as<float>(), l.w.numel(), 1.0f);
  l.forward(), l.backward(dy);
  for (int64_t t = 1; t < l.T; ++t) {  // sums of two: 200 and -200
    EXPECT_EQ(l.y.as<float>()[t * l.C], 200);
    EXPECT_NEAR(l.y.as<float>()[t * l.C + 1], 0, 1e-30);
    if (t + 1 == l.T) continue;
    const float* dx = l.dproduct.as<float>() + t * (l.C + kOtherColumns) + 1;
    EXPECT_EQ(dx[0], dy.as<float>()[t * l.C] + dy.as<float>()[(t + 1) * l.C]);
    EXPECT_NEAR(dx[1], 0, 1e-30);
  }
}

void expect_short_conv_paths_agree(const std::vector<Piece>& pieces, int64_t C, int64_t taps) {
  const Sequence s = sequence_of(pieces);
  expect_paths_agree(fmt::format("T={} C={} taps={}", s.num_tokens(), C, taps),
                     [&](Bench& b) -> std::vector<Output> {
                       ShortConvLayer l(b, s, C, taps);
                       l.forward();
                       l.backward(b.product("dy", l.y.shape));
                       return {{"y", l.y}, {"dx", l.dproduct}, {"dhalo", l.dhalo}, {"dw", l.dw}};
                     });
}

TEST(ShortConv, Paths) {
  for (const auto& pieces : segment_cases())
    for (const int64_t C : {1, 7, 40})
      for (const int64_t taps : {2, 4, 8}) expect_short_conv_paths_agree(pieces, C, taps);
  expect_short_conv_paths_agree(segment_cases().back(), 1030, 3);  // more than a block of channels
}

}  // namespace
}  // namespace ashlar::kernels
