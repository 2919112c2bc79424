#include "ashlar/kernels/norm.h"

#include "tests/kernels/norm_cases.h"

namespace ashlar::kernels {
namespace {

void set_values(const Tensor& t, std::initializer_list<double> values) {
  std::copy(values.begin(), values.end(), t.as<double>());
}

void expect_near_values(const Tensor& t, std::initializer_list<double> want, double tolerance) {
  const std::vector<double> got = values_of(t);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want.begin()[i], tolerance) << i;
}

// A hand-computed row: eps 1e-5, h = 1 2 3 4.
TEST(Norm, KnownRow) {
  Bench b;
  const Tensor h = b.stream({1, 4}), w = b.stream({4}), y = b.stream({1, 4}), rstd = b.stream({1});
  set_values(h, {1, 2, 3, 4});
  set_values(w, {1, 1.1, 0.9, 1.2});
  rms_norm_forward(b.context(), kEps, h, w, y, rstd);
  expect_near_values(rstd, {0.3651481282}, 1e-10);
  expect_near_values(y, {0.3651481, 0.8033259, 0.9858999, 1.7527110}, 1e-7);
  const Tensor dy = b.stream({1, 4}), dh = b.stream({1, 4}), dw = b.stream({4});
  set_values(dy, {.1, -.2, .3, .4});
  rms_norm_backward(b.context(),
                    {.dy_TH = dy, .h_TH = h, .w_H = w, .rstd_T = rstd, .dh_TH = dh, .dw_H = dw});
  expect_near_values(dh, {0.00742472, -0.13851278, 0.01131971, 0.05891072}, 1e-8);
}

// Tensors of a merge, ZAYA1's or plain, and a norm by name.
struct NormLayer {
  Bench& b;
  Shape TH, H, T;
  Tensor o, r, w, h, y, rstd;
  MergeParams merge;
  double weight_offset = 0;
  NormLayer(Bench& bench, const NormCase& c, bool plain = false)
      : b(bench), TH{c.T, c.H}, H{c.H}, T{c.T} {
    o = b.stream("o", TH), r = b.stream("r", TH), w = b.stream("w", H, 1);
    if (!plain)
      merge = {b.stream("ao", H, 1), b.stream("bo", H), b.stream("ar", H, 1), b.stream("br", H)};
    h = b.stream(TH), y = b.product(TH), rstd = b.stream(T);
  }
  void forward() {
    merge_norm_forward(b.context(), {.eps = kEps,
                                     .o_TH = o,
                                     .r_TH = r,
                                     .params = merge,
                                     .w_H = w,
                                     .h_TH = h,
                                     .y_TH = y,
                                     .rstd_T = rstd,
                                     .weight_offset = weight_offset});
  }
  void backward(const Tensor& dy, const Tensor& dh_in, const Tensor& kept_h, const Tensor& d_o,
                const Tensor& dr, const MergeParams& grads, const Tensor& dw) {
    merge_norm_backward(b.context(), {.dy_TH = dy,
                                      .dh_in_TH = dh_in,
                                      .o_TH = o,
                                      .r_TH = r,
                                      .h_TH = kept_h,
                                      .rstd_T = rstd,
                                      .params = merge,
                                      .w_H = w,
                                      .d_o_TH = d_o,
                                      .dr_TH = dr,
                                      .grads = grads,
                                      .dw_H = dw,
                                      .weight_offset = weight_offset});
  }
  MergeParams gradients() const {
    if (!merge.hidden_scale_H) return {};
    return {b.stream(H), b.stream(H), b.stream(H), b.stream(H)};
  }
};

TEST(Norm, MergeFormula) {
  for (const NormCase& c : kNormCases) {
    Bench b;
    NormLayer l(b, c);
    l.forward();
    for (int64_t t = 0; t < c.T; ++t) {
      double square = 0;
      std::vector<double> h(size_t(c.H));
      for (int64_t i = 0; i < c.H; ++i) {
        const auto at = [&](const Tensor& v) { return v.as<double>()[i]; };
        h[size_t(i)] = (l.o.as<double>()[t * c.H + i] + at(l.merge.hidden_bias_H)) *
                           at(l.merge.hidden_scale_H) +
                       (l.r.as<double>()[t * c.H + i] + at(l.merge.residual_bias_H)) *
                           at(l.merge.residual_scale_H);
        square += h[size_t(i)] * h[size_t(i)];
      }
      const double rstd = 1 / std::sqrt(square / double(c.H) + kEps);
      for (int64_t i = 0; i < c.H; ++i) {
        ASSERT_NEAR(l.h.as<double>()[t * c.H + i], h[size_t(i)], 1e-14);
        ASSERT_NEAR(l.y.as<double>()[t * c.H + i], l.w.as<double>()[i] * h[size_t(i)] * rstd,
                    1e-13);
      }
    }
  }
}

TEST(Norm, PlainMergeFormula) {
  for (const NormCase& c : kNormCases) {
    Bench b;
    NormLayer l(b, c, true);
    l.forward();
    const double *o = l.o.as<double>(), *r = l.r.as<double>();
    for (int64_t t = 0; t < c.T; ++t) {
      double square = 0;
      for (int64_t i = t * c.H; i < (t + 1) * c.H; ++i) square += (o[i] + r[i]) * (o[i] + r[i]);
      const double rstd = 1 / std::sqrt(square / double(c.H) + kEps);
      ASSERT_NEAR(l.rstd.as<double>()[t], rstd, 1e-12 * rstd);
      for (int64_t i = t * c.H; i < (t + 1) * c.H; ++i) {
        ASSERT_EQ(l.h.as<double>()[i], o[i] + r[i]);
        ASSERT_NEAR(l.y.as<double>()[i], l.w.as<double>()[i - t * c.H] * (o[i] + r[i]) * rstd,
                    1e-12);
      }
    }
  }
}

TEST(Norm, RmsGradients) {
  Bench b;
  const Shape TH{3, 7}, H{7};
  const Tensor h = b.stream("h", TH), w = b.stream("w", H, 1), y = b.stream(TH),
               rstd = b.stream(Shape{3});
  const Tensor dy = b.stream("dy", TH), extra = b.stream("extra", TH), dh = b.stream(TH),
               dw = b.stream(H);
  const auto loss = [&] {
    rms_norm_forward(b.context(), kEps, h, w, y, rstd);
    return dot(y, dy) + dot(h, extra);
  };
  loss();
  copy_convert(extra, dh);
  // dh is dh_in.
  rms_norm_backward(
      b.context(),
      {.dy_TH = dy, .h_TH = h, .w_H = w, .rstd_T = rstd, .dh_in_TH = dh, .dh_TH = dh, .dw_H = dw});
  expect_gradient("dh", h, values_of(dh), loss);
  expect_gradient("dw", w, values_of(dw), loss);
}

TEST(Norm, MergeGradients) {
  for (const bool keep_h : {false, true}) {
    Bench b;
    NormLayer l(b, {3, 7});
    const Tensor dy = b.stream("dy", l.TH), dh_in = b.stream("dh_in", l.TH);
    const auto loss = [&] {
      l.forward();
      return dot(l.y, dy) + dot(l.h, dh_in);
    };
    loss();
    const Tensor d_o = b.stream(l.TH), dr = b.stream(l.TH), dw = b.stream(l.H);
    const MergeParams g = l.gradients();
    copy_convert(dh_in, dr);
    l.backward(dy, dr, keep_h ? l.h : Tensor{}, d_o, dr, g, dw);
    expect_gradient("do", l.o, values_of(d_o), loss);
    expect_gradient("dr", l.r, values_of(dr), loss);
    expect_gradient("dw", l.w, values_of(dw), loss);
    expect_gradient("dao", l.merge.hidden_scale_H, values_of(g.hidden_scale_H), loss);
    expect_gradient("dbo", l.merge.hidden_bias_H, values_of(g.hidden_bias_H), loss);
    expect_gradient("dar", l.merge.residual_scale_H, values_of(g.residual_scale_H), loss);
    expect_gradient("dbr", l.merge.residual_bias_H, values_of(g.residual_bias_H), loss);
  }
}

TEST(Norm, PlainMergeGradients) {
  for (const bool keep_h : {false, true}) {
    Bench b;
    NormLayer l(b, {3, 7}, true);
    const Tensor dy = b.stream("dy", l.TH), dh_in = b.stream("dh_in", l.TH);
    const auto loss = [&] {
      l.forward();
      return dot(l.y, dy) + dot(l.h, dh_in);
    };
    loss();
    const Tensor d_o = b.stream(l.TH), dr = b.stream(l.TH), dw = b.stream(l.H);
    copy_convert(dh_in, dr);
    const Tensor o = l.o, r = l.r;
    if (keep_h) l.o = l.r = {};  // nobody reads them
    l.backward(dy, dr, keep_h ? l.h : Tensor{}, d_o, dr, {}, dw);
    l.o = o, l.r = r;
    expect_gradient("do", l.o, values_of(d_o), loss);
    expect_gradient("dr", l.r, values_of(dr), loss);
    expect_gradient("dw", l.w, values_of(dw), loss);
  }
}

// The merge whose norm stands elsewhere (the last one of a pipeline's stage).
struct Alone : NormLayer {
  using NormLayer::NormLayer;
  void forward() {
    merge_norm_forward(b.context(),
                       {.eps = kEps, .o_TH = o, .r_TH = r, .params = merge, .h_TH = h});
  }
  void backward(const Tensor& dh_in, const Tensor& d_o, const Tensor& dr,
                const MergeParams& grads) {
    merge_norm_backward(b.context(), {.dh_in_TH = dh_in,
                                      .o_TH = o,
                                      .r_TH = r,
                                      .params = merge,
                                      .d_o_TH = d_o,
                                      .dr_TH = dr,
                                      .grads = grads});
  }
};

TEST(Norm, GradientsOfTheMergeAlone) {
  for (const bool plain : {false, true}) {
    Bench b;
    Alone l(b, {3, 7}, plain);
    const Tensor dh_in = b.stream("dh_in", l.TH);
    const auto loss = [&] {
      l.forward();
      return dot(l.h, dh_in);
    };
    loss();
    const Tensor d_o = b.stream(l.TH), dr = b.stream(l.TH);
    const MergeParams g = l.gradients();
    copy_convert(dh_in, dr);
    l.backward(dr, d_o, dr, g);
    expect_gradient("do", l.o, values_of(d_o), loss);
    expect_gradient("dr", l.r, values_of(dr), loss);
    if (plain) continue;
    expect_gradient("dao", l.merge.hidden_scale_H, values_of(g.hidden_scale_H), loss);
    expect_gradient("dbo", l.merge.hidden_bias_H, values_of(g.hidden_bias_H), loss);
    expect_gradient("dar", l.merge.residual_scale_H, values_of(g.residual_scale_H), loss);
    expect_gradient("dbr", l.merge.residual_bias_H, values_of(g.residual_bias_H), loss);
  }
}

// The stream after it is the same, bit for bit, whether its norm is made at once or elsewhere.
TEST(Norm, TheMergeAloneGivesTheSameStream) {
  for (const bool plain : {false, true})
    for (const NormCase& c : kNormCases) {
      Bench b;
      NormLayer both(b, c, plain);
      both.forward();
      const std::vector<double> want = values_of(both.h);
      Alone alone(b, c, plain);
      alone.forward();
      EXPECT_EQ(values_of(alone.h), want) << name_of(c);
    }
}

TEST(Norm, PathsOfTheMergeAlone) {
  for (const bool plain : {false, true})
    for (const NormCase& c : kNormCases)
      expect_paths_agree("merge alone " + name_of(c), [&](Bench& b) -> std::vector<Output> {
        Alone l(b, c, plain);
        l.forward();
        const Tensor d_o = b.product(l.TH), dr = b.stream(l.TH);
        const MergeParams g = l.gradients();
        l.backward(b.stream("dh_in", l.TH), d_o, dr, g);
        std::vector<Output> outputs = {{"h", l.h}, {"do", d_o}, {"dr", dr}};
        if (!plain)
          outputs.insert(outputs.end(), {{"dao", g.hidden_scale_H},
                                         {"dbo", g.hidden_bias_H},
                                         {"dar", g.residual_scale_H},
                                         {"dbr", g.residual_bias_H}});
        return outputs;
      });
}

TEST(Norm, APartOfTheMergeParametersIsOurBug) {
  Bench b;
  NormLayer l(b, {3, 7});
  const Tensor dy = b.stream(l.TH), d_o = b.stream(l.TH), dr = b.stream(l.TH), dw = b.stream(l.H);
  EXPECT_DEATH(l.backward(dy, {}, {}, d_o, dr, {}, dw), "is_plain");
  l.merge.residual_bias_H = {};
  EXPECT_DEATH(l.forward(), "shape");
  l.merge = {}, l.merge.hidden_bias_H = l.w;
  EXPECT_DEATH(l.forward(), "shape");
}

TEST(Norm, Paths) {
  for (const NormCase& c : kNormCases) {
    for (const bool residual_gradient : {false, true}) {
      expect_paths_agree("rms_norm " + name_of(c), [&](Bench& b) -> std::vector<Output> {
        const Shape TH{c.T, c.H}, H{c.H};
        const Tensor h = b.stream("h", TH), w = b.stream("w", H, 1), y = b.product(TH),
                     rstd = b.stream(Shape{c.T});
        const Tensor dh_in = residual_gradient ? b.stream("dh_in", TH) : Tensor{};
        const Tensor dh = b.stream(TH), dw = b.stream("dw", H);
        rms_norm_forward(b.context(), kEps, h, w, y, rstd);
        rms_norm_backward(b.context(), {.dy_TH = b.product("dy", TH),
                                        .h_TH = h,
                                        .w_H = w,
                                        .rstd_T = rstd,
                                        .dh_in_TH = dh_in,
                                        .dh_TH = dh,
                                        .dw_H = dw});
        return {{"y", y}, {"rstd", rstd}, {"dh", dh}, {"dw", dw}};
      });
      expect_paths_agree("merge_norm " + name_of(c), [&](Bench& b) -> std::vector<Output> {
        NormLayer l(b, c);
        l.forward();
        const Tensor dh_in = residual_gradient ? b.stream("dh_in", l.TH) : Tensor{};
        const Tensor d_o = b.product(l.TH), dr = b.stream(l.TH), dw = b.stream("dw", l.H);
        const MergeParams g = l.gradients();
        l.backward(b.product("dy", l.TH), dh_in, residual_gradient ? l.h : Tensor{}, d_o, dr, g,
                   dw);
        return {{"h", l.h},
                {"y", l.y},
                {"rstd", l.rstd},
                {"do", d_o},
                {"dr", dr},
                {"dw", dw},
                {"dao", g.hidden_scale_H},
                {"dbo", g.hidden_bias_H},
                {"dar", g.residual_scale_H},
                {"dbr", g.residual_bias_H}};
      });
      expect_paths_agree("plain merge_norm " + name_of(c), [&](Bench& b) -> std::vector<Output> {
        NormLayer l(b, c, true);
        l.forward();
        const Tensor dh_in = residual_gradient ? b.stream("dh_in", l.TH) : Tensor{};
        const Tensor d_o = b.product(l.TH), dr = b.stream(l.TH), dw = b.stream("dw", l.H);
        l.backward(b.product("dy", l.TH), dh_in, residual_gradient ? l.h : Tensor{}, d_o, dr, {},
                   dw);
        return {{"h", l.h}, {"y", l.y}, {"rstd", l.rstd}, {"do", d_o}, {"dr", dr}, {"dw", dw}};
      });
    }
  }
}

// A weight of w - 1 with an offset of 1 does what a weight of w does, forward and backward.
TEST(Norm, AnOffsetAddsToTheWeight) {
  const auto rms = [](const NormCase& c, double offset) {
    return [=](Bench& b) -> std::vector<Output> {
      const Shape TH{c.T, c.H}, H{c.H};
      const Tensor h = b.stream("h", TH), w = weight_less(b, "w", H, offset), y = b.product(TH),
                   rstd = b.stream(Shape{c.T}), dh = b.stream(TH), dw = b.stream("dw", H);
      rms_norm_forward(b.context(), kEps, h, w, y, rstd, offset);
      rms_norm_backward(b.context(), {.dy_TH = b.product("dy", TH),
                                      .h_TH = h,
                                      .w_H = w,
                                      .rstd_T = rstd,
                                      .dh_TH = dh,
                                      .dw_H = dw,
                                      .weight_offset = offset});
      return {{"y", y}, {"dh", dh}, {"dw", dw}};
    };
  };
  const auto merge = [](const NormCase& c, bool plain, double offset) {
    return [=](Bench& b) -> std::vector<Output> {
      NormLayer l(b, c, plain);
      l.w = weight_less(b, "w", l.H, offset), l.weight_offset = offset;
      l.forward();
      const Tensor d_o = b.product(l.TH), dr = b.stream(l.TH), dw = b.stream("dw", l.H);
      l.backward(b.product("dy", l.TH), {}, l.h, d_o, dr, l.gradients(), dw);
      return {{"y", l.y}, {"do", d_o}, {"dr", dr}, {"dw", dw}};
    };
  };
  for (const NormCase& c : kNormCases) {
    expect_same_bits("rms_norm " + name_of(c), rms(c, 1), rms(c, 0));
    for (const bool plain : {false, true})
      expect_same_bits("merge_norm " + name_of(c), merge(c, plain, 1), merge(c, plain, 0));
  }
}

TEST(Norm, CostOfACall) {
  Bench b({}, true, 1, Device::kMeta);
  const Shape TH{130, 8}, H{8};
  rms_norm_backward(b.context(), {.dy_TH = b.stream(TH),
                                  .h_TH = b.stream(TH),
                                  .w_H = b.stream(H),
                                  .rstd_T = b.stream(Shape{130}),
                                  .dh_TH = b.stream(TH),
                                  .dw_H = b.stream(H)});
  ASSERT_EQ(b.calls().size(), 1u);
  EXPECT_EQ(b.calls()[0].op, "rms_norm_backward");
  EXPECT_EQ(total(b.calls()).bytes, 8 * (3 * 130 * 8 + 130 + 2 * 8));
  EXPECT_EQ(b.taken().peak_bytes(), 3 * 8 * 8);  // one row of dw per 64 tokens
}

}  // namespace
}  // namespace ashlar::kernels
