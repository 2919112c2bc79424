#include "ashlar/kernels/qk.h"

#include "ashlar/kernels/cpu/elementwise.h"
#include "tests/kernels/kernel_case.h"
#include "tests/kernels/rope_formula.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

constexpr QkShape kShapes[] = {{4, 2, 4, 2, 1e-12},
                               {2, 1, 6, 6, 1e-12},
                               {2, 2, 33, 6, 1e-6},
                               {3, 1, 4, 0, 1e-12},
                               {4, 2, 64, 32, 1e-12},
                               // Shares of the heads: other ranks hold queries of the same keys;
                               // values of one kind only.
                               {2, 1, 6, 4, 1e-12, 4, 3},
                               {4, 2, 33, 6, 1e-6, 6, 0},
                               {2, 2, 4, 2, 1e-12, 1, 8}};

// y += x, a stream.
void add(const Tensor& x, const Tensor& y) {
  cpu::with_real(y.dtype, [&]<typename Real>(Real) {
    for (int64_t i = 0; i < y.numel(); ++i) y.as<Real>()[i] += x.as<Real>()[i];
  });
}

struct QkLayer {
  Bench& b;
  const QkShape& s;
  const Sequence& sequence;
  int64_t T, KD;
  Tensor rope, qkv, y, b1, tau, halo, qhat, khat, v, n_q, n_k, q_sum, others;
  QkLayer(Bench& bench, const QkShape& shape, const Sequence& tokens)
      : b(bench), s(shape), sequence(tokens), T(tokens.num_tokens()), KD(s.K * s.D) {
    rope = b.stream({100, s.rotary_dim});
    rope_table(b.context(), {.theta = kTheta}, rope);
    qkv = b.product("qkv", {T, s.C() + KD}), y = b.product("y", {T, s.C()}),
    b1 = b.stream("b1", {s.C()});
    tau = b.stream("tau", {s.K}, 1.5),
    halo = b.stream("halo", {tokens.num_halos(), s.num_delayed()});
    qhat = b.product({T, s.N * s.D}), khat = b.product({T, KD}), v = b.product({T, KD});
    n_q = b.stream({T, s.N}), n_k = b.stream({T, s.K});
    if (shared()) q_sum = b.stream({T, KD}), others = b.stream("others", {T, KD});
  }
  bool shared() const { return s.G() != s.N / s.K; }
  void forward() {
    if (shared()) {
      qk_query_sums(b.context(), s, qkv, q_sum);
      if (!b.context().meta()) add(others, q_sum);
    }
    qk_forward(b.context(), {.shape = s,
                             .sequence = sequence,
                             .rope_PR = rope,
                             .qkv = qkv,
                             .y_TC = y,
                             .b1_C = b1,
                             .tau_K = tau,
                             .halo_vd = halo,
                             .q_sum_TKD = q_sum,
                             .qhat = qhat,
                             .khat = khat,
                             .v = v,
                             .n_q_TN = n_q,
                             .n_k_TK = n_k});
  }
};

struct QkGradientTensors {
  Tensor dqhat, dkhat, dv, dy, dqkv, dhalo, dtau, db1, dq_sum;
  explicit QkGradientTensors(const QkLayer& l) {
    Bench& b = l.b;
    dqhat = b.stream("dqhat", l.qhat.shape), dkhat = b.stream("dkhat", l.khat.shape),
    dv = b.stream("dv", l.v.shape);
    dy = b.product(l.y.shape), dqkv = b.product("overwritten", l.qkv.shape),
    dhalo = b.stream(l.halo.shape);
    dtau = b.stream(l.tau.shape), db1 = b.stream(l.b1.shape);
    if (l.shared()) dq_sum = b.stream(l.q_sum.shape);
  }
  void run(const QkLayer& l) const {
    if (l.shared())
      qk_query_gradient_sums(l.b.context(), {.shape = l.s,
                                             .sequence = l.sequence,
                                             .rope_PR = l.rope,
                                             .qkv = l.qkv,
                                             .y_TC = l.y,
                                             .b1_C = l.b1,
                                             .n_q_TN = l.n_q,
                                             .dqhat = dqhat,
                                             .dq_sum_TKD = dq_sum});
    qk_backward(l.b.context(), {.shape = l.s,
                                .sequence = l.sequence,
                                .rope_PR = l.rope,
                                .qkv = l.qkv,
                                .y_TC = l.y,
                                .b1_C = l.b1,
                                .tau_K = l.tau,
                                .n_q_TN = l.n_q,
                                .n_k_TK = l.n_k,
                                .q_sum_TKD = l.q_sum,
                                .dqhat = dqhat,
                                .dkhat = dkhat,
                                .dv = dv,
                                .dq_sum_TKD = dq_sum,
                                .dy_TC = dy,
                                .dqkv = dqkv,
                                .dhalo_vd = dhalo,
                                .dtau_K = dtau,
                                .db1_C = db1});
  }
};

// One head of one token after the definition: mean, norm, temperature, rotation.
std::vector<double> hat(const QkShape& s, std::vector<double> x, double tau, int64_t position) {
  double square = s.eps;
  for (const double value : x) square += value * value;
  for (double& value : x) value *= tau * std::sqrt(double(s.D) / square);
  return turned(x, s.rotary_dim, position);
}

TEST(Qk, Formula) {
  for (const QkShape& s : kShapes)
    for (const auto& pieces : segment_cases()) {
      const Sequence sequence = sequence_of(pieces);
      Bench b;
      QkLayer l(b, s, sequence);
      l.forward();
      const int64_t local = s.N / s.K;
      for (int64_t t = 0; t < l.T; ++t) {
        const int64_t position = sequence.position_T()[size_t(t)];
        const double *z = l.qkv.as<double>() + t * (s.C() + l.KD),
                     *y = l.y.as<double>() + t * s.C();
        const double* bias = l.b1.as<double>();
        for (int64_t h = 0; h < s.N; ++h) {
          std::vector<double> x;
          for (int64_t i = 0; i < s.D; ++i)
            x.push_back(y[h * s.D + i] + bias[h * s.D + i] +
                        (z[h * s.D + i] + z[(s.N + h / local) * s.D + i]) / 2);
          x = hat(s, x, 1, position);
          for (int64_t i = 0; i < s.D; ++i)
            ASSERT_NEAR(l.qhat.as<double>()[(t * s.N + h) * s.D + i], x[size_t(i)], 1e-12);
        }
        for (int64_t j = 0; j < s.K; ++j) {
          std::vector<double> x;
          for (int64_t i = 0; i < s.D; ++i) {
            double sum = l.shared() ? l.others.as<double>()[t * l.KD + j * s.D + i] : 0;
            for (int64_t h = j * local; h < (j + 1) * local; ++h) sum += z[h * s.D + i];
            const double mean = sum / double(s.G());
            const int64_t c = (s.N + j) * s.D + i;
            x.push_back(y[c] + bias[c] + (z[c] + mean) / 2);
          }
          x = hat(s, x, l.tau.as<double>()[j], position);
          for (int64_t i = 0; i < s.D; ++i)
            ASSERT_NEAR(l.khat.as<double>()[(t * s.K + j) * s.D + i], x[size_t(i)], 1e-12);
        }
      }
    }
}

TEST(Qk, ValuesAreHalfDelayed) {
  Bench b;
  const Sequence sequence = sequence_of({{0, 2}, {4, 2}});
  QkLayer l(b, kShapes[0], sequence);
  l.forward();
  const int64_t half = l.KD / 2, width = l.s.C() + l.KD, vc = l.s.C(), vd = vc + half;
  for (int64_t i = 0; i < half; ++i) {
    const double *qkv = l.qkv.as<double>(), *v = l.v.as<double>();
    for (int64_t t = 0; t < 4; ++t) EXPECT_EQ(v[t * l.KD + i], qkv[t * width + vc + i]);
    EXPECT_EQ(v[half + i], 0);  // starts a document
    EXPECT_EQ(v[l.KD + half + i], qkv[vd + i]);
    EXPECT_EQ(v[2 * l.KD + half + i], l.halo.as<double>()[i]);  // continues one
    EXPECT_EQ(v[3 * l.KD + half + i], qkv[2 * width + vd + i]);
  }
}

TEST(Qk, Gradients) {
  const Sequence sequence = sequence_of({{0, 2}, {1, 1}, {5, 3}, {0, 1}});
  for (const QkShape& s : kShapes) {
    if (s.D > 8) continue;
    Bench b;
    QkLayer l(b, s, sequence);
    const QkGradientTensors g(l);
    const auto loss = [&] {
      l.forward();
      return dot(l.qhat, g.dqhat) + dot(l.khat, g.dkhat) + dot(l.v, g.dv);
    };
    loss();
    g.run(l);
    expect_gradient("dy", l.y, values_of(g.dy), loss);
    expect_gradient("dqkv", l.qkv, values_of(g.dqkv), loss);
    expect_gradient("dhalo", l.halo, values_of(g.dhalo), loss);
    expect_gradient("dtau", l.tau, values_of(g.dtau), loss);
    expect_gradient("db1", l.b1, values_of(g.db1), loss);
  }
}

TEST(Qk, Paths) {
  for (const QkShape& s : kShapes)
    for (const auto& pieces : segment_cases()) {
      const Sequence sequence = sequence_of(pieces);
      expect_paths_agree(fmt::format("T={} N={} K={} D={}", sequence.num_tokens(), s.N, s.K, s.D),
                         [&](Bench& b) -> std::vector<Output> {
                           QkLayer l(b, s, sequence);
                           l.forward();
                           const QkGradientTensors g(l);
                           g.run(l);
                           return {{"qhat", l.qhat}, {"khat", l.khat},   {"v", l.v},
                                   {"n_q", l.n_q},   {"n_k", l.n_k},     {"dy", g.dy},
                                   {"dqkv", g.dqkv}, {"dhalo", g.dhalo}, {"dtau", g.dtau},
                                   {"db1", g.db1},   {"q_sum", l.q_sum}, {"dq_sum", g.dq_sum}};
                         });
    }
}

}  // namespace
}  // namespace ashlar::kernels
