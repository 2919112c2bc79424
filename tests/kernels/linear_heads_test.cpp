#include "ashlar/kernels/linear_heads.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

constexpr FeatureMap kMaps[] = {FeatureMap::kIdentity, FeatureMap::kSilu, FeatureMap::kRelu,
                                FeatureMap::kEluPlusOne};

double mapped(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::kSilu:
      return x / (1 + std::exp(-x));
    case FeatureMap::kRelu:
      return std::max(x, 0.0);
    case FeatureMap::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    default:
      return x;
  }
}

struct LinearHeadsLayer {
  Bench& b;
  LinearHeadsShape s;
  int64_t T;
  Tensor product, qhat, khat, vhat, rstd_q, rstd_k;
  Tensor dqhat, dkhat, dvhat, dproduct;
  // input: the type of qkv.
  LinearHeadsLayer(Bench& bench, const LinearHeadsShape& shape, int64_t num_tokens, DType input)
      : b(bench), s(shape), T(num_tokens) {
    product = b.random(input, "qkv", {T, s.width() + kOtherColumns});
    qhat = b.product({T, s.K * s.dk}), khat = b.product({T, s.K * s.dk});
    vhat = b.product({T, s.H * s.dv});
    if (s.unit_keys) rstd_q = b.stream({T, s.K}), rstd_k = b.stream({T, s.K});
    dqhat = b.stream("dqhat", qhat.shape), dkhat = b.stream("dkhat", khat.shape);
    dvhat = b.stream("dvhat", vhat.shape), dproduct = b.product(product.shape);
  }
  Matrix qkv(const Tensor& t) const { return Matrix::of(t).columns(0, s.width()); }
  void forward() {
    linear_heads_forward(b.context(), {.shape = s,
                                       .qkv = qkv(product),
                                       .qhat = qhat,
                                       .khat = khat,
                                       .vhat = vhat,
                                       .rstd_q_TK = rstd_q,
                                       .rstd_k_TK = rstd_k});
  }
  void backward() {
    linear_heads_backward(b.context(), {.shape = s,
                                        .qkv = qkv(product),
                                        .rstd_q_TK = rstd_q,
                                        .rstd_k_TK = rstd_k,
                                        .dqhat = dqhat,
                                        .dkhat = dkhat,
                                        .dvhat = dvhat,
                                        .dqkv = qkv(dproduct)});
  }
};

// Every map of keys and of values, with and without unit length.
std::vector<LinearHeadsShape> shapes(int64_t K, int64_t H, int64_t dk, int64_t dv) {
  std::vector<LinearHeadsShape> result;
  for (const FeatureMap keys : kMaps)
    for (const FeatureMap values : {FeatureMap::kIdentity, FeatureMap::kSilu})
      for (const bool unit : {false, true}) result.push_back({K, H, dk, dv, keys, values, unit});
  return result;
}
std::string name_of(const LinearHeadsShape& s) {
  return fmt::format("K={} H={} dk={} dv={} maps {} {} unit {}", s.K, s.H, s.dk, s.dv, int(s.keys),
                     int(s.values), s.unit_keys);
}

TEST(LinearHeads, Formula) {
  for (const LinearHeadsShape& s : shapes(2, 4, 3, 5)) {
    Bench b;
    LinearHeadsLayer l(b, s, 17, DType::kF64);
    l.forward();
    for (int64_t t = 0; t < l.T; ++t) {
      const double* row = l.product.as<double>() + t * (s.width() + kOtherColumns);
      for (int64_t head = 0; head < 2 * s.K; ++head) {
        const bool key = head >= s.K;
        double squares = 1e-6;
        for (int64_t i = 0; i < s.dk; ++i) squares += std::pow(mapped(s.keys, row[i]), 2);
        const double rstd = s.unit_keys ? 1 / std::sqrt(squares) : 1;
        const int64_t at = t * s.K + head % s.K;
        if (s.unit_keys) {
          ASSERT_NEAR((key ? l.rstd_k : l.rstd_q).as<double>()[at], rstd, 1e-12);
        }
        for (int64_t i = 0; i < s.dk; ++i)
          ASSERT_NEAR((key ? l.khat : l.qhat).as<double>()[at * s.dk + i],
                      mapped(s.keys, row[i]) * rstd, 1e-14)
              << name_of(s);
        row += s.dk;
      }
      for (int64_t i = 0; i < s.H * s.dv; ++i)
        ASSERT_NEAR(l.vhat.as<double>()[t * s.H * s.dv + i], mapped(s.values, row[i]), 1e-14);
    }
  }
}

TEST(LinearHeads, Gradients) {
  for (const LinearHeadsShape& s : shapes(2, 3, 4, 2)) {
    Bench b;
    LinearHeadsLayer l(b, s, 3, DType::kF64);
    const auto loss = [&] {
      l.forward();
      return dot(l.qhat, l.dqhat) + dot(l.khat, l.dkhat) + dot(l.vhat, l.dvhat);
    };
    loss();
    l.backward();
    expect_gradient(name_of(s), l.product, values_of(l.dproduct), loss, 1e-7);
  }
}

TEST(LinearHeads, LargeAndZeroHeadsStayFinite) {
  for (const LinearHeadsShape& s : shapes(1, 1, 2, 2))
    for (const bool reference : {true, false})
      for (const float size : {0.0f, 100.0f}) {
        Bench b({DType::kF32, DType::kF32}, reference);
        LinearHeadsLayer l(b, s, 1, DType::kF32);
        for (int64_t i = 0; i < s.width(); ++i) l.product.as<float>()[i] = i % 2 ? size : -size;
        l.forward(), l.backward();
        for (const Tensor& t : {l.qhat, l.khat, l.vhat, l.dproduct})
          for (const double x : values_of(t)) EXPECT_TRUE(std::isfinite(x)) << name_of(s);
        if (size == 0) continue;
        // Beside 100 what -100 becomes vanishes, but for the identity.
        const double low = s.keys == FeatureMap::kIdentity ? -1 : 0;
        const double high = s.keys == FeatureMap::kEluPlusOne ? 101 : 100;
        const double length = s.unit_keys ? std::sqrt(high * high + low * low * 1e4) : 1;
        EXPECT_NEAR(l.qhat.as<float>()[0], low * 100 / length, 1e-6) << name_of(s);
        EXPECT_NEAR(l.khat.as<float>()[1], high / length, 1e-6) << name_of(s);
      }
}

TEST(LinearHeads, Paths) {
  std::vector<LinearHeadsShape> cases = shapes(2, 4, 16, 20);
  cases.push_back({1, 1, 1, 1, FeatureMap::kSilu, FeatureMap::kSilu, true});
  cases.push_back({2, 6, 33, 7, FeatureMap::kEluPlusOne, FeatureMap::kIdentity, true});
  for (const LinearHeadsShape& s : cases)
    for (const int64_t T : {1, 3, 65, 130})
      for (const bool after_convolution : {false, true})
        expect_paths_agree(
            fmt::format("T={} {}", T, name_of(s)), [&](Bench& b) -> std::vector<Output> {
              const Precision p = b.precision();
              LinearHeadsLayer l(b, s, T, after_convolution ? p.product : p.stream);
              l.forward(), l.backward();
              std::vector<Output> outputs = {
                  {"q", l.qhat}, {"k", l.khat}, {"v", l.vhat}, {"dqkv", l.dproduct}};
              if (s.unit_keys)
                outputs.insert(outputs.end(), {{"rstd_q", l.rstd_q}, {"rstd_k", l.rstd_k}});
              return outputs;
            });
}

}  // namespace
}  // namespace ashlar::kernels
