#include "ashlar/kernels/state_gates.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

Matrix left(const Tensor& t) {
  return Matrix::of(t).columns(0, t.shape[1] - kOtherColumns);
}

struct Gla {
  Bench& b;
  int64_t T, N;
  Tensor x, bias, log_decay, dlog_decay, dx, dbias;
  Gla(Bench& bench, int64_t num_tokens, int64_t channels) : b(bench), T(num_tokens), N(channels) {
    x = b.stream("x", {T, N + kOtherColumns}), bias = b.stream("bias", {N}),
    log_decay = b.stream({T, N});
    dlog_decay = b.stream("dlog_decay", {T, N}), dx = b.product(x.shape);
    dbias = b.stream(bias.shape);
  }
  void forward() { gla_gate_forward(b.context(), left(x), bias, log_decay); }
  void backward() {
    gla_gate_backward(b.context(), {.x_TN = left(x),
                                    .bias_N = bias,
                                    .dlog_decay_TN = dlog_decay,
                                    .dx_TN = left(dx),
                                    .dbias_N = dbias});
  }
};

struct Delta {
  Bench& b;
  int64_t T, H;
  Tensor ba, a_log, dt_bias, log_decay, beta, dlog_decay, dbeta, dba, da_log, ddt_bias;
  Delta(Bench& bench, int64_t num_tokens, int64_t heads) : b(bench), T(num_tokens), H(heads) {
    ba = b.stream("ba", {T, 2 * H + kOtherColumns}), a_log = b.stream("a_log", {H});
    dt_bias = b.stream("dt_bias", {H}), log_decay = b.stream({T, H}), beta = b.stream({T, H});
    dlog_decay = b.stream("dlog_decay", {T, H}), dbeta = b.stream("dbeta", {T, H});
    dba = b.product(ba.shape), da_log = b.stream({H}), ddt_bias = b.stream({H});
  }
  void forward() {
    delta_gates_forward(b.context(), {.ba_T2H = left(ba),
                                      .a_log_H = a_log,
                                      .dt_bias_H = dt_bias,
                                      .log_decay_TH = log_decay,
                                      .beta_TH = beta});
  }
  void backward() {
    delta_gates_backward(b.context(), {.ba_T2H = left(ba),
                                       .a_log_H = a_log,
                                       .dt_bias_H = dt_bias,
                                       .dlog_decay_TH = dlog_decay,
                                       .dbeta_TH = dbeta,
                                       .dba_T2H = left(dba),
                                       .da_log_H = da_log,
                                       .ddt_bias_H = ddt_bias});
  }
};

TEST(StateGates, GlaFormula) {
  Bench b;
  Gla l(b, 17, 5);
  l.forward();
  for (int64_t t = 0; t < l.T; ++t)
    for (int64_t i = 0; i < l.N; ++i) {
      const double in = l.x.as<double>()[t * (l.N + kOtherColumns) + i] + l.bias.as<double>()[i];
      ASSERT_NEAR(l.log_decay.as<double>()[t * l.N + i], -std::log(1 + std::exp(-in)) / 16, 1e-15);
    }
}

TEST(StateGates, DeltaFormula) {
  Bench b;
  Delta l(b, 17, 5);
  l.forward();
  for (int64_t t = 0; t < l.T; ++t)
    for (int64_t h = 0; h < l.H; ++h) {
      const double* row = l.ba.as<double>() + t * (2 * l.H + kOtherColumns);
      const double in = row[l.H + h] + l.dt_bias.as<double>()[h];
      const double a = std::exp(l.a_log.as<double>()[h]);
      ASSERT_NEAR(l.log_decay.as<double>()[t * l.H + h], -a * std::log(1 + std::exp(in)), 1e-14);
      ASSERT_NEAR(l.beta.as<double>()[t * l.H + h], 1 / (1 + std::exp(-row[h])), 1e-15);
    }
}

TEST(StateGates, GlaGradients) {
  Bench b;
  Gla l(b, 3, 7);
  const auto loss = [&] {
    l.forward();
    return dot(l.log_decay, l.dlog_decay);
  };
  l.backward();
  expect_gradient("dx", l.x, values_of(l.dx), loss, 1e-7);
  expect_gradient("dbias", l.bias, values_of(l.dbias), loss, 1e-7);
}

TEST(StateGates, DeltaGradients) {
  Bench b;
  Delta l(b, 3, 7);
  const auto loss = [&] {
    l.forward();
    return dot(l.log_decay, l.dlog_decay) + dot(l.beta, l.dbeta);
  };
  l.backward();
  expect_gradient("dba", l.ba, values_of(l.dba), loss, 1e-7);
  expect_gradient("da_log", l.a_log, values_of(l.da_log), loss, 1e-7);
  expect_gradient("ddt_bias", l.dt_bias, values_of(l.ddt_bias), loss, 1e-7);
}

// Every path of this machine in fp32, then the reference in fp64.
void for_gate_paths(const std::function<void(Bench&, const std::string&)>& body) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench b({DType::kF32, DType::kF32}, false);
    body(b, std::string(name_of(path)));
  }
  select_isa(best);
  Bench reference({DType::kF32, DType::kF32}, true), exact;
  body(reference, "reference");
  body(exact, "fp64");
}

void fill(const Tensor& t, const std::vector<double>& values) {
  ASSERT_EQ(int64_t(values.size()), t.numel());
  for (size_t i = 0; i < values.size(); ++i)
    if (t.dtype == DType::kF64)
      t.as<double>()[i] = values[i];
    else
      t.as<float>()[i] = float(values[i]);
}

// The limits are exact; what is above 0 by less than fp32 has is 0 to 1e-35.
void expect_values(const Tensor& t, const std::vector<double>& want, const std::string& path) {
  const std::vector<double> got = values_of(t);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], want[i] == 0 ? 1e-35 : 0) << path << " " << i;
}

TEST(StateGates, GlaLimits) {
  for_gate_paths([](Bench& b, const std::string& path) {
    Gla l(b, 1, 4);
    fill(l.x, {100, -100, 1000, -1000, 0, 0, 0}), fill(l.bias, {0, 0, 0, 0});
    fill(l.dlog_decay, {16, 16, 16, 16});
    l.forward(), l.backward();
    expect_values(l.log_decay, {0, -100.0 / 16, 0, -1000.0 / 16}, path);
    expect_values(l.dx, {0, 1, 0, 1, 0, 0, 0}, path);
    expect_values(l.dbias, {0, 1, 0, 1}, path);
  });
}

TEST(StateGates, DeltaLimits) {
  for_gate_paths([](Bench& b, const std::string& path) {
    Delta l(b, 1, 4);
    fill(l.ba, {100, -100, 1000, -1000, 100, -100, 1000, -1000, 0, 0, 0});
    fill(l.a_log, {0, 0, 0, 0}), fill(l.dt_bias, {0, 0, 0, 0});
    fill(l.dlog_decay, {1, 1, 1, 1}), fill(l.dbeta, {1, 1, 1, 1});
    l.forward(), l.backward();
    expect_values(l.beta, {1, 0, 1, 0}, path);
    expect_values(l.log_decay, {-100, 0, -1000, 0}, path);
    expect_values(l.dba, {0, 0, 0, 0, -1, 0, -1, 0, 0, 0, 0}, path);
    expect_values(l.da_log, {-100, 0, -1000, 0}, path);
    expect_values(l.ddt_bias, {-1, 0, -1, 0}, path);
  });
}

// Where sigmoid is almost 1 the logarithm keeps its digits: logsigmoid(10) is -4.5398899e-05.
TEST(StateGates, SmallLogarithmsKeepTheirDigits) {
  for_gate_paths([](Bench& b, const std::string& path) {
    std::vector<double> inputs;
    for (int i = -200; i <= 200; ++i) inputs.push_back(i / 16.0 * 5);  // to +- 62.5
    const auto N = int64_t(inputs.size());
    Gla l(b, 1, N);
    fill(l.bias, inputs);
    std::vector<double> zeros(size_t(N + kOtherColumns));
    fill(l.x, zeros);
    l.forward();
    const std::vector<double> got = values_of(l.log_decay);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const double x = inputs[i];
      const double want = -(std::max(-x, 0.0) + std::log1p(std::exp(-std::abs(x)))) / 16;
      EXPECT_NEAR(got[i], want, 1e-6 * std::abs(want)) << path << " " << x;
    }
  });
}

TEST(StateGates, Paths) {
  for (const int64_t T : {1, 3, 65, 130})
    for (const int64_t n : {1, 7, 16, 40}) {
      expect_paths_agree(fmt::format("gla T={} N={}", T, n), [&](Bench& b) -> std::vector<Output> {
        Gla l(b, T, n);
        l.forward(), l.backward();
        return {{"log_decay", l.log_decay}, {"dx", l.dx}, {"dbias", l.dbias}};
      });
      expect_paths_agree(fmt::format("delta T={} H={}", T, n),
                         [&](Bench& b) -> std::vector<Output> {
                           Delta l(b, T, n);
                           l.forward(), l.backward();
                           return {{"log_decay", l.log_decay},
                                   {"beta", l.beta},
                                   {"dba", l.dba},
                                   {"da_log", l.da_log},
                                   {"ddt_bias", l.ddt_bias}};
                         });
    }
}

}  // namespace
}  // namespace ashlar::kernels
