#include "ashlar/kernels/rope.h"

#include <numbers>

#include "tests/kernels/kernel_case.h"
#include "tests/kernels/rope_formula.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

struct RopeCase {
  HeadsShape shape;  // N, K, D, rotary_dim, eps, weight_offset, gated
  bool norms;
};
constexpr RopeCase kRopeCases[] = {{{2, 1, 4, 4}, false},
                                   {{2, 1, 6, 6, 1e-6}, true},
                                   {{3, 1, 5, 2, 1e-5}, true},
                                   {{4, 4, 4, 0}, false},
                                   {{1, 1, 1, 0, 0.1}, true},
                                   {{3, 2, 33, 6, 1e-6}, true},
                                   {{1, 1, 33, 32}, false},
                                   {{2, 1, 64, 64, 1e-6}, true},
                                   {{1, 1, 256, 256, 1e-6}, true},
                                   {{1, 1, 80, 40}, false},
                                   {{3, 1, 6, 4, 1e-6, 0, true}, true},
                                   {{2, 2, 4, 2, 0, 0, true}, false}};

std::string name_of(const RopeCase& c, int64_t T) {
  return fmt::format("T={} N={} K={} D={} rho={}{}", T, c.shape.N, c.shape.K, c.shape.D,
                     c.shape.rotary_dim, c.norms ? " norms" : "");
}

struct RopeLayer {
  Bench& b;
  const HeadsShape& s;
  const Sequence& sequence;
  int64_t T;
  Tensor rope, qkv, q_norm, k_norm, qhat, khat, v, rstd_q, rstd_k;
  RopeLayer(Bench& bench, const RopeCase& c, const Sequence& tokens)
      : b(bench), s(c.shape), sequence(tokens), T(tokens.num_tokens()) {
    if (s.rotary_dim > 0) {
      rope = b.stream({100, s.rotary_dim});
      rope_table(b.context(), {.theta = kTheta}, rope);
    }
    qkv = b.product("qkv", {T, s.width()});
    qhat = b.product({T, s.N * s.D}), khat = b.product({T, s.K * s.D}), v = b.product(khat.shape);
    if (!c.norms) return;
    q_norm = b.stream("q_norm", {s.D}, 1), k_norm = b.stream("k_norm", {s.D}, 1);
    rstd_q = b.stream({T, s.N}), rstd_k = b.stream({T, s.K});
  }
  void forward() const {
    heads_forward(b.context(), {.shape = s,
                                .sequence = sequence,
                                .rope_PR = rope,
                                .qkv = qkv,
                                .q_norm_D = q_norm,
                                .k_norm_D = k_norm,
                                .qhat = qhat,
                                .khat = khat,
                                .v = v,
                                .rstd_q_TN = rstd_q,
                                .rstd_k_TK = rstd_k});
  }
};

struct RopeGradientTensors {
  Tensor dqhat, dkhat, dv, dqkv, dq_norm, dk_norm;
  RopeGradientTensors(const RopeLayer& l, const Tensor& into) : dqkv(into) {
    Bench& b = l.b;
    dqhat = b.stream("dqhat", l.qhat.shape), dkhat = b.stream("dkhat", l.khat.shape),
    dv = b.stream("dv", l.v.shape);
    if (l.q_norm)
      dq_norm = b.stream("dq_norm", l.q_norm.shape), dk_norm = b.stream("dk_norm", l.q_norm.shape);
  }
  void run(const RopeLayer& l) const {
    heads_backward(l.b.context(), {.shape = l.s,
                                   .sequence = l.sequence,
                                   .rope_PR = l.rope,
                                   .qkv = l.q_norm ? l.qkv : Tensor{},
                                   .q_norm_D = l.q_norm,
                                   .k_norm_D = l.k_norm,
                                   .rstd_q_TN = l.rstd_q,
                                   .rstd_k_TK = l.rstd_k,
                                   .dqhat = dqhat,
                                   .dkhat = dkhat,
                                   .dv = dv,
                                   .dqkv = dqkv,
                                   .dq_norm_D = dq_norm,
                                   .dk_norm_D = dk_norm});
  }
};

// One head of one token after the definition.
std::vector<double> hat(const HeadsShape& s, const double* from, const Tensor& w,
                        int64_t position) {
  std::vector<double> x(from, from + s.D);
  if (w) {
    double square = 0;
    for (const double value : x) square += value * value / double(s.D);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= w.as<double>()[i] / std::sqrt(square + s.eps);
  }
  return turned(x, s.rotary_dim, position);
}

TEST(Rope, HeadsFormula) {
  for (const RopeCase& c : kRopeCases)
    for (const auto& pieces : segment_cases()) {
      const Sequence sequence = sequence_of(pieces);
      const HeadsShape& s = c.shape;
      Bench b;
      const RopeLayer l(b, c, sequence);
      l.forward();
      for (int64_t t = 0; t < l.T; ++t) {
        const int64_t position = sequence.position_T()[size_t(t)];
        const double* row = l.qkv.as<double>() + t * s.width();
        for (int64_t h = 0; h < s.N + 2 * s.K; ++h) {
          const bool query = h < s.N, key = !query && h < s.N + s.K;
          const std::vector<double> want =
              query || key ? hat(s, row + h * s.D, query ? l.q_norm : l.k_norm, position)
                           : std::vector<double>(row + h * s.D, row + (h + 1) * s.D);
          const Tensor& got = query ? l.qhat : key ? l.khat : l.v;
          const int64_t first = t * got.shape[1] + (query ? h : (h - s.N) % s.K) * s.D;
          for (int64_t i = 0; i < s.D; ++i)
            ASSERT_NEAR(got.as<double>()[first + i], want[size_t(i)], 1e-12)
                << name_of(c, l.T) << " head " << h;
        }
      }
    }
}

TEST(Rope, HeadsGradients) {
  const Sequence sequence = sequence_of({{0, 2}, {1, 1}, {5, 3}, {0, 1}});
  for (const RopeCase& c : kRopeCases) {
    if (c.shape.D > 8) continue;
    Bench b;
    const RopeLayer l(b, c, sequence);
    const RopeGradientTensors g(l, b.stream("overwritten", l.qkv.shape));
    const std::vector<double> before = values_of(g.dqkv);
    const auto loss = [&] {
      l.forward();
      return dot(l.qhat, g.dqhat) + dot(l.khat, g.dkhat) + dot(l.v, g.dv);
    };
    loss();
    if (c.norms) fill_zero(g.dq_norm), fill_zero(g.dk_norm);
    g.run(l);
    std::vector<double> dqkv = values_of(g.dqkv);
    const HeadsShape& s = c.shape;
    for (int64_t i = 0; i < int64_t(dqkv.size()); ++i)
      if (i % s.width() >= s.gate_begin()) {  // somebody else's
        EXPECT_EQ(dqkv[size_t(i)], before[size_t(i)]);
        dqkv[size_t(i)] = 0;
      }
    expect_gradient("dqkv", l.qkv, dqkv, loss);
    if (!c.norms) continue;
    expect_gradient("dq_norm", l.q_norm, values_of(g.dq_norm), loss);
    expect_gradient("dk_norm", l.k_norm, values_of(g.dk_norm), loss);
  }
}

TEST(Rope, HeadsPaths) {
  for (const RopeCase& c : kRopeCases)
    for (const auto& pieces : segment_cases()) {
      const Sequence sequence = sequence_of(pieces);
      expect_paths_agree(name_of(c, sequence.num_tokens()), [&](Bench& b) -> std::vector<Output> {
        const RopeLayer l(b, c, sequence);
        l.forward();
        const RopeGradientTensors g(l, b.product("overwritten", l.qkv.shape));
        g.run(l);
        return {{"qhat", l.qhat},       {"khat", l.khat},      {"v", l.v},
                {"rstd_q", l.rstd_q},   {"rstd_k", l.rstd_k},  {"dqkv", g.dqkv},
                {"dq_norm", g.dq_norm}, {"dk_norm", g.dk_norm}};
      });
    }
}

// As of norms (norm_test.cpp).
TEST(Rope, AnOffsetAddsToTheWeight) {
  const auto heads = [](RopeCase c, const Sequence& sequence, double offset) {
    c.shape.weight_offset = offset;
    return [c, &sequence](Bench& b) -> std::vector<Output> {
      RopeLayer l(b, c, sequence);
      l.q_norm = weight_less(b, "q_norm", {c.shape.D}, c.shape.weight_offset);
      l.k_norm = weight_less(b, "k_norm", {c.shape.D}, c.shape.weight_offset);
      l.forward();
      const RopeGradientTensors g(l, b.product("overwritten", l.qkv.shape));
      g.run(l);
      return {{"qhat", l.qhat},
              {"khat", l.khat},
              {"dqkv", g.dqkv},
              {"dq_norm", g.dq_norm},
              {"dk_norm", g.dk_norm}};
    };
  };
  for (const RopeCase& c : kRopeCases)
    for (const auto& pieces : segment_cases()) {
      if (!c.norms) continue;
      const Sequence sequence = sequence_of(pieces);
      expect_same_bits(name_of(c, sequence.num_tokens()), heads(c, sequence, 1),
                       heads(c, sequence, 0));
    }
}

TEST(Rope, CostOfACall) {
  const Sequence sequence = sequence_of({{0, 130}});
  for (const bool norms : {false, true}) {
    const RopeCase c{{4, 2, 8, 6, 1e-6}, norms};
    Bench b({DType::kF32, DType::kBF16}, false, 1, Device::kMeta);
    RopeLayer l(b, c, sequence);
    l.rope = b.stream({130, 6});
    l.forward();
    RopeGradientTensors(l, b.product(l.qkv.shape)).run(l);
    const std::vector<Call> records = b.calls();
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].op, "heads_forward");
    EXPECT_EQ(records[1].op, "heads_backward");
    EXPECT_EQ(records[0].cost.flop, 130 * 6 * (3 * 6 + (norms ? 4 : 0) * 8));
    EXPECT_EQ(records[1].cost.flop, 130 * 6 * (3 * 6 + (norms ? 11 : 0) * 8));
    const int64_t elements = 130 * 8 * 8, rstd = norms ? 4 * 130 * 6 : 0;
    EXPECT_EQ(records[0].cost.bytes, elements * (2 + 2) + rstd);
    EXPECT_EQ(records[1].cost.bytes, elements * (4 + 2 + (norms ? 2 : 0)) + rstd);
  }
}

TEST(Rope, NormsComeTogether) {
  const Sequence sequence = sequence_of({{0, 3}});
  Bench b;
  RopeLayer l(b, kRopeCases[1], sequence);
  const RopeGradientTensors g(l, b.stream(l.qkv.shape));
  const Tensor k_norm = l.k_norm, rstd_q = l.rstd_q;
  l.k_norm = {};
  EXPECT_DEATH(l.forward(), "k_norm_D");
  l.k_norm = k_norm, l.rstd_q = {};
  EXPECT_DEATH(l.forward(), "rstd_q_TN");
  l.rstd_q = rstd_q, l.rope = l.rope.slice(0, 2);  // position 2 has no angles
  EXPECT_DEATH(l.forward(), "segment.position");
}

// The angle of position 1 and pair i.
double angle_of(const Tensor& table, int64_t i) {
  const int64_t rho = table.shape[1];
  const double* row = table.as<double>() + rho;
  return std::atan2(row[rho / 2 + i], row[i]);
}

TEST(Rope, Table) {
  Bench b;
  const Tensor table = b.stream({70, 6}), unscaled = b.stream({70, 6});
  rope_table(b.context(), {.theta = kTheta}, table);
  for (int64_t p = 0; p < 70; ++p)
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = double(p) / std::pow(kTheta, double(i) / 3);
      EXPECT_NEAR(table.as<double>()[p * 6 + i], std::cos(angle), 1e-13);
      EXPECT_NEAR(table.as<double>()[p * 6 + 3 + i], std::sin(angle), 1e-13);
    }
  rope_table(b.context(), {.theta = kTheta, .scaling = {.factor = 8}, .length = 9}, unscaled);
  EXPECT_EQ(values_of(unscaled), values_of(table));
}

// Llama 3.1's own numbers: theta 500000, heads of 128, 8192 positions, factor 8.
TEST(Rope, ScaledTable) {
  Bench b;
  const Tensor plain = b.stream({2, 128}), table = b.stream({2, 128});
  rope_table(b.context(), {.theta = 500000}, plain);
  const RopeScaling scaling{.type = RopeScaling::Type::kLlama3,
                            .factor = 8,
                            .original_positions = 8192,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4};
  rope_table(b.context(), {.theta = 500000, .scaling = scaling}, table);
  int64_t kept = 0, divided = 0, between = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const double frequency = std::pow(500000.0, -double(i) / 64);
    const double wavelength = 2 * std::numbers::pi / frequency;
    double want = frequency;
    if (wavelength > 8192) {
      want = frequency / 8, ++divided;
    } else if (wavelength < 2048) {
      ++kept;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      want = (1 - smooth) * frequency / 8 + smooth * frequency, ++between;
    }
    EXPECT_NEAR(angle_of(plain, i), frequency, 1e-13) << i;
    EXPECT_NEAR(angle_of(table, i), want, 1e-13 + 1e-9 * want) << i;
  }
  // Counted by hand: wavelength 2048 lies at i = 28.2, 8192 at i = 34.98.
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(between, 6);
  EXPECT_EQ(divided, 29);
}

// Frequencies that Hugging Face transformers 5.24 computes in single precision
// (modeling_rope_utils.ROPE_INIT_FUNCTIONS), and what it multiplies cos and sin by.
struct Scaled {
  const char* name;
  Rope rope;
  double amplitude;
  std::vector<double> frequencies;
};

const std::vector<Scaled>& scaled_cases() {
  using Type = RopeScaling::Type;
  static const std::vector<Scaled> cases = {
      {"linear",
       {.theta = 1e4, .scaling = {.type = Type::kLinear, .factor = 4}},
       1,
       {2.50000000e-01, 2.50000004e-02, 2.49999994e-03, 2.50000012e-04}},
      {"dynamic, three times its length",
       {.theta = 1e4,
        .scaling = {.type = Type::kDynamic, .factor = 2, .original_positions = 16},
        .length = 48},
       1,
       {1, 5.84803522e-02, 3.41995200e-03, 1.99999995e-04}},
      {"dynamic, just beyond its length",
       {.theta = 1e4,
        .scaling = {.type = Type::kDynamic, .factor = 2, .original_positions = 16},
        .length = 17},
       1,
       {1, 9.61499736e-02, 9.24481731e-03, 8.88888899e-04}},
      {"dynamic, within its length",
       {.theta = 1e4,
        .scaling = {.type = Type::kDynamic, .factor = 2, .original_positions = 16},
        .length = 8},
       1,
       {1, 1.00000001e-01, 9.99999978e-03, 1.00000005e-03}},
      {"yarn",
       {.theta = 1e4, .scaling = {.type = Type::kYarn, .factor = 4, .original_positions = 32}},
       1.13862944,
       {1, 1.97642356e-01, 2.50000004e-02, 7.90569466e-03, 2.49999994e-03, 7.90569466e-04,
        2.50000012e-04, 7.90569466e-05}},
      {"yarn, not truncated",
       {.theta = 5e5,
        .scaling = {.type = Type::kYarn,
                    .factor = 4,
                    .original_positions = 32,
                    .beta_fast = 8,
                    .beta_slow = 0.5,
                    .truncate = false}},
       1.13862944,
       {1, 9.11363065e-02, 9.40150768e-03, 1.82316627e-03, 3.53553361e-04, 6.85620471e-05,
        1.32957393e-05, 2.57834631e-06}},
      {"yarn with an attention factor",
       {.theta = 1e4,
        .scaling = {.type = Type::kYarn,
                    .factor = 16,
                    .original_positions = 64,
                    .attention_factor = 0.75}},
       0.75,
       {1, 1.14454329e-01, 2.90099275e-03, 6.24999986e-04, 1.34652146e-04, 2.90099342e-05}},
      {"yarn of fewer positions than a turn",
       {.theta = 1e4, .scaling = {.type = Type::kYarn, .factor = 2, .original_positions = 4}},
       1.06931472,
       {1, 5.00000007e-02, 4.99999989e-03, 5.00000024e-04}},
  };
  return cases;
}

TEST(Rope, ScaledTablesOfTransformers) {
  for (const Scaled& c : scaled_cases()) {
    Bench b;
    const auto half = int64_t(c.frequencies.size());
    const Tensor table = b.stream({2, 2 * half});
    rope_table(b.context(), c.rope, table);
    for (int64_t i = 0; i < half; ++i) {
      const double want = c.frequencies[size_t(i)];
      EXPECT_NEAR(angle_of(table, i), want, 2e-7 * want) << c.name << " " << i;
      const double* row = table.as<double>() + 2 * half;
      EXPECT_NEAR(std::hypot(row[i], row[half + i]), c.amplitude, 1e-8) << c.name;
      EXPECT_NEAR(table.as<double>()[i], c.amplitude, 1e-8) << c.name;  // position 0
    }
  }
}

// Rows of a sequence that grows: the first belong to its length, each behind them to its own.
TEST(Rope, DynamicTableOfASequenceThatGrows) {
  Bench b;
  const auto table = [&](int64_t rows, int64_t length) {
    const Tensor made = b.stream({rows, 8});
    rope_table(
        b.context(),
        {.theta = 1e4,
         .scaling = {.type = RopeScaling::Type::kDynamic, .factor = 2, .original_positions = 16},
         .length = length},
        made);
    return values_of(made);
  };
  const auto row = [](const std::vector<double>& values, int64_t p) {
    return std::vector(values.begin() + p * 8, values.begin() + (p + 1) * 8);
  };
  EXPECT_EQ(table(80, 0), table(80, 80));
  for (const int64_t first : {4, 16, 20, 70}) {
    const auto grown = table(80, first), at_once = table(first, 0);
    for (int64_t p = 0; p < 80; ++p)
      EXPECT_EQ(row(grown, p), p < first ? row(at_once, p) : row(table(p + 1, 0), p))
          << first << " " << p;
  }
}

}  // namespace
}  // namespace ashlar::kernels
