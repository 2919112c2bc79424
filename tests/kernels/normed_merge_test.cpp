#include "ashlar/kernels/norm.h"
#include "tests/kernels/norm_cases.h"

namespace ashlar::kernels {
namespace {

// MiniMax's merge, h = beta o + alpha n, of n, which a norm before it made of r, and of o; then the
// norm y of h.
struct Normed {
  static constexpr MergeFactors kFactors{.alpha = 1.3, .beta = 0.7};
  Bench& b;
  double offset;
  Shape TH, H, T;
  Tensor o, r, v, n, rstd_r, w, h, y, rstd;
  Normed(Bench& bench, const NormCase& c, double weight_offset = 0)
      : b(bench), offset(weight_offset), TH{c.T, c.H}, H{c.H}, T{c.T} {
    o = b.stream("o", TH), r = b.stream("r", TH);
    v = weight_less(b, "v", H, offset), w = weight_less(b, "w", H, offset);
    n = b.product(TH), rstd_r = b.stream(T), h = b.stream(TH), y = b.product(TH),
    rstd = b.stream(T);
  }
  void forward() const {
    rms_norm_forward(b.context(), kEps, r, v, n, rstd_r, offset);
    merge_norm_forward(b.context(), {.eps = kEps,
                                     .o_TH = o,
                                     .r_TH = r,
                                     .factors = kFactors,
                                     .r_norm_H = v,
                                     .r_rstd_T = rstd_r,
                                     .w_H = w,
                                     .h_TH = h,
                                     .y_TH = y,
                                     .rstd_T = rstd,
                                     .weight_offset = offset});
  }
  // dn: what reached n besides; dr becomes the gradient of r.
  void backward(const Tensor& dy, const Tensor& dy_in, const Tensor& dn, const Tensor& d_o,
                const Tensor& dr, const Tensor& dw, const Tensor& dv) const {
    merge_norm_backward(b.context(), {.dy_TH = dy,
                                      .dy_in_TH = dy_in,
                                      .h_TH = h,
                                      .rstd_T = rstd,
                                      .factors = kFactors,
                                      .w_H = w,
                                      .d_o_TH = d_o,
                                      .dr_TH = dr,
                                      .dw_H = dw,
                                      .weight_offset = offset});
    rms_norm_backward(b.context(), {.dy_TH = dn,
                                    .h_TH = r,
                                    .w_H = v,
                                    .rstd_T = rstd_r,
                                    .dy_in_TH = dr,
                                    .dh_TH = dr,
                                    .dw_H = dv,
                                    .weight_offset = offset});
  }
};

TEST(Norm, NormedMergeFormula) {
  for (const NormCase& c : kNormCases)
    for (const double offset : {0.0, 1.0}) {
      Bench b;
      const Normed l(b, c, offset);
      l.forward();
      for (int64_t t = 0; t < c.T; ++t) {
        const auto row = [&](const Tensor& x) { return x.as<double>() + t * c.H; };
        const auto rstd_of = [&](const std::vector<double>& x) {
          double square = 0;
          for (const double value : x) square += value * value;
          return 1 / std::sqrt(square / double(c.H) + kEps);
        };
        const double rstd_r = rstd_of({row(l.r), row(l.r) + c.H});
        std::vector<double> h(size_t(c.H));
        for (int64_t i = 0; i < c.H; ++i)
          h[size_t(i)] =
              0.7 * row(l.o)[i] + 1.3 * (offset + l.v.as<double>()[i]) * row(l.r)[i] * rstd_r;
        for (int64_t i = 0; i < c.H; ++i) {
          ASSERT_NEAR(row(l.h)[i], h[size_t(i)], 1e-12);
          ASSERT_NEAR(row(l.y)[i], (offset + l.w.as<double>()[i]) * h[size_t(i)] * rstd_of(h),
                      1e-12);
        }
      }
    }
}

TEST(Norm, NormedMergeGradients) {
  for (const double offset : {0.0, 1.0}) {
    Bench b;
    const Normed l(b, {3, 7}, offset);
    const Tensor dy = b.stream("dy", l.TH), dy_in = b.stream("dy_in", l.TH),
                 dn = b.stream("dn", l.TH);
    const auto loss = [&] {
      l.forward();
      return dot(l.y, dy) + dot(l.y, dy_in) + dot(l.n, dn);
    };
    loss();
    const Tensor d_o = b.stream(l.TH), dr = b.stream(l.TH), dw = b.stream(l.H), dv = b.stream(l.H);
    copy_convert(dy_in, dr);
    l.backward(dy, dr, dn, d_o, dr, dw, dv);
    expect_gradient("do", l.o, values_of(d_o), loss);
    expect_gradient("dr", l.r, values_of(dr), loss);
    expect_gradient("dw", l.w, values_of(dw), loss);
    expect_gradient("dv", l.v, values_of(dv), loss);
  }
}

TEST(Norm, PathsOfTheNormedMerge) {
  for (const NormCase& c : kNormCases)
    for (const bool more : {false, true})
      expect_paths_agree("normed merge_norm " + name_of(c), [&](Bench& b) -> std::vector<Output> {
        const Normed l(b, c, more);
        l.forward();
        const Tensor dy_in = more ? b.stream("dy_in", l.TH) : Tensor{};
        const Tensor d_o = b.product(l.TH), dr = b.stream(l.TH), dw = b.stream("dw", l.H),
                     dv = b.stream("dv", l.H);
        l.backward(b.product("dy", l.TH), dy_in, b.product("dn", l.TH), d_o, dr, dw, dv);
        return {{"h", l.h}, {"y", l.y}, {"rstd", l.rstd}, {"do", d_o},
                {"dr", dr}, {"dw", dw}, {"dv", dv}};
      });
}

}  // namespace
}  // namespace ashlar::kernels
