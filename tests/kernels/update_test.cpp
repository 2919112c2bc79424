#include "ashlar/kernels/update.h"

#include <cstring>
#include <functional>
#include <limits>
#include <span>

#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Around vectors, tasks (32768 elements) and blocks of sums (4096).
constexpr int64_t kSizes[] = {1, 3, 17, 65, 4095, 4097, 70001};

TEST(Update, AdamWReferenceIsTheFormula) {
  const AdamWStep step = {.lr = 0.1,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .decay = 0.2,
                          .step = 3,
                          .grad_scale = 0.5};
  Bench bench;
  const Tensor w = bench.stream("w", {9}), g = bench.stream("g", {9}), m = bench.stream("m", {9});
  const Tensor v = bench.stream("v", {9}, 1.0);
  const std::vector<double> w0 = values_of(w), m0 = values_of(m), v0 = values_of(v);
  adamw(bench.context(), {.step = step, .g = g, .w = w, .m = m, .v = v});
  for (size_t i = 0; i < 9; ++i) {
    const double gradient = g.as<double>()[i] * 0.5;
    const double want_m = 0.9 * m0[i] + 0.1 * gradient,
                 want_v = 0.95 * v0[i] + 0.05 * gradient * gradient;
    const double m_hat = want_m / (1 - std::pow(0.9, 3)), v_hat = want_v / (1 - std::pow(0.95, 3));
    EXPECT_NEAR(m.as<double>()[i], want_m, 1e-15);
    EXPECT_NEAR(v.as<double>()[i], want_v, 1e-15);
    EXPECT_NEAR(w.as<double>()[i],
                w0[i] * (1 - 0.1 * 0.2) - 0.1 * m_hat / (std::sqrt(v_hat) + 1e-8), 1e-14);
  }
}

TEST(Update, AdamWPathsAgree) {
  for (const int64_t n : kSizes) {
    for (const int64_t t : {1, 1000}) {
      expect_paths_agree(fmt::format("adamw {} step {}", n, t), [&](Bench& bench) {
        const AdamWStep step = {.lr = 6e-4,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .decay = 0.1,
                                .step = t,
                                .grad_scale = 0.125};
        const Tensor w = bench.stream("w", {n}), g = bench.stream("g", {n}),
                     m = bench.stream("m", {n});
        const Tensor v = bench.stream("v", {n}, 1.5);
        adamw(bench.context(), {.step = step, .g = g, .w = w, .m = m, .v = v});
        return std::vector<Output>{{"w", w}, {"m", m}, {"v", v}};
      });
    }
  }
}

// The first step of AdamW has the length of its learning rate, whatever the size of the gradient.
TEST(Update, FirstAdamWStepIsTheLearningRate) {
  Bench bench({DType::kF32, DType::kF32}, false);
  const Tensor w = bench.stream({40}), g = bench.stream("g", {40}, 2.0), m = bench.stream({40}),
               v = bench.stream({40});
  const AdamWStep step{
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12, .decay = 0.1, .step = 1};
  adamw(bench.context(), {.step = step, .g = g, .w = w, .m = m, .v = v});
  for (const double x : values_of(w)) EXPECT_NEAR(x, -0.01, 1e-7);
}

TEST(Update, MuonPassesAreTheFormula) {
  for (const bool nesterov : {false, true}) {
    Bench bench;
    const Tensor g = bench.stream("g", {9}), m = bench.stream("m", {9}), x = bench.stream({9}),
                 w = bench.stream("w", {9});
    const std::vector<double> m0 = values_of(m), w0 = values_of(w);
    muon_momentum(bench.context(),
                  {.mu = 0.95, .nesterov = nesterov, .grad_scale = 0.5, .g = g, .m = m, .x = x});
    muon_apply(bench.context(), {.lr = 0.1, .decay = 0.2, .lambda = 0.3, .x = x, .w = w});
    for (size_t i = 0; i < 9; ++i) {
      const double gradient = 0.5 * g.as<double>()[i], want_m = 0.95 * m0[i] + gradient;
      const double want_x = nesterov ? gradient + 0.95 * want_m : want_m;
      EXPECT_NEAR(m.as<double>()[i], want_m, 1e-15);
      EXPECT_NEAR(x.as<double>()[i], want_x, 1e-15);
      EXPECT_NEAR(w.as<double>()[i], w0[i] * (1 - 0.1 * 0.2) - 0.3 * want_x, 1e-15);
    }
  }
}

TEST(Update, MuonPathsAgree) {
  for (const int64_t n : kSizes) {
    for (const bool nesterov : {false, true}) {
      expect_paths_agree(fmt::format("muon {}", n), [&](Bench& bench) {
        const Tensor g = bench.stream("g", {n}), m = bench.stream("m", {n}), x = bench.stream({n});
        const Tensor w = bench.stream("w", {n});
        muon_momentum(
            bench.context(),
            {.mu = 0.95, .nesterov = nesterov, .grad_scale = 0.25, .g = g, .m = m, .x = x});
        muon_apply(bench.context(), {.lr = 0.02, .decay = 0.1, .lambda = 0.2, .x = x, .w = w});
        return std::vector<Output>{{"m", m}, {"x", x}, {"w", w}};
      });
    }
  }
}

// Runs `pass` on tensors of n elements at once, then on copies of them in pieces of odd lengths.
void expect_same_in_pieces(std::string_view name,
                           const std::function<void(Bench&, std::span<const Tensor>)>& pass) {
  constexpr int64_t n = 70001;
  for (const Isa path : supported_isas()) {
    select_isa(path);
    for (const bool reference : {true, false}) {
      Bench bench({DType::kF32, DType::kF32}, reference);
      std::vector<Tensor> whole, cut;
      for (const std::string_view input : {"a", "b", "c", "d"})
        for (std::vector<Tensor>* list : {&whole, &cut})
          list->push_back(bench.stream(input, {n}, 1.5));
      pass(bench, whole);
      for (int64_t begin = 0, length = 1; begin < n; begin += length, length = length * 3 % 1009) {
        std::vector<Tensor> pieces;
        for (const Tensor& t : cut) pieces.push_back(t.slice(begin, std::min(n, begin + length)));
        pass(bench, pieces);
      }
      for (size_t t = 0; t < whole.size(); ++t)
        EXPECT_EQ(std::memcmp(whole[t].data, cut[t].data, size_t(whole[t].bytes())), 0)
            << name << " " << name_of(path) << " tensor " << t;
    }
  }
  select_isa(supported_isas().back());
}

TEST(Update, PiecesGetTheBitsOfTheWhole) {
  expect_same_in_pieces("adamw", [](Bench& bench, std::span<const Tensor> t) {
    const AdamWStep step = {.lr = 6e-4,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .decay = 0.1,
                            .step = 7,
                            .grad_scale = 0.3};
    adamw(bench.context(), {.step = step, .g = t[1], .w = t[0], .m = t[2], .v = t[3]});
  });
  for (const bool nesterov : {false, true})
    expect_same_in_pieces("muon", [&](Bench& bench, std::span<const Tensor> t) {
      muon_momentum(
          bench.context(),
          {.mu = 0.95, .nesterov = nesterov, .grad_scale = 0.3, .g = t[0], .m = t[1], .x = t[2]});
      muon_apply(bench.context(), {.lr = 0.02, .decay = 0.1, .lambda = 0.2, .x = t[2], .w = t[3]});
    });
}

TEST(Update, MuonInputMayReplaceTheGradient) {
  for (const int64_t n : kSizes)
    for (const bool nesterov : {false, true})
      for (const DType type : {DType::kF32, DType::kF64}) {
        Bench bench({type, type}, false, 2);
        const Tensor g = bench.stream("g", {n}), m = bench.stream("m", {n}), x = bench.stream({n});
        const Tensor in_place = bench.stream("g", {n}), own_m = bench.stream("m", {n});
        muon_momentum(
            bench.context(),
            {.mu = 0.95, .nesterov = nesterov, .grad_scale = 0.3, .g = g, .m = m, .x = x});
        muon_momentum(bench.context(), {.mu = 0.95,
                                        .nesterov = nesterov,
                                        .grad_scale = 0.3,
                                        .g = in_place,
                                        .m = own_m,
                                        .x = in_place});
        EXPECT_EQ(std::memcmp(x.data, in_place.data, size_t(x.bytes())), 0) << n;
        EXPECT_EQ(std::memcmp(m.data, own_m.data, size_t(m.bytes())), 0) << n;
      }
}

double squares_of(Bench& bench, const Tensor& x) {
  const Tensor sum = bench.zeros(DType::kF64, {1});
  sum_of_squares(bench.context(), x, sum);
  return sum.as<double>()[0];
}

TEST(Update, SumOfSquares) {
  for (const int64_t n : kSizes) {
    Bench exact;
    double want = 0;
    for (const double x : values_of(exact.stream("x", {n}))) want += x * x;
    EXPECT_NEAR(squares_of(exact, exact.stream("x", {n})), want, 1e-13 * want);
    for (const Isa path : supported_isas()) {
      select_isa(path);
      for (const bool reference : {true, false}) {
        Bench one({DType::kF32, DType::kF32}, reference, 1),
            three({DType::kF32, DType::kF32}, reference, 3);
        const double sum = squares_of(one, one.stream("x", {n}));
        EXPECT_NEAR(sum, want, 2e-5 * want) << n;
        EXPECT_EQ(sum, squares_of(three, three.stream("x", {n}))) << n;
      }
    }
    select_isa(supported_isas().back());
  }
}

TEST(Update, NonFiniteElementsAreFound) {
  const int64_t n = 70001;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const bool reference : {true, false}) {
      Bench bench({dtype, dtype}, reference, 3);
      const Tensor x = bench.stream("x", {n});
      EXPECT_EQ(first_non_finite(bench.context(), x), -1);
      const auto put = [&](int64_t i, double value) {
        dtype == DType::kF32 ? void(x.as<float>()[i] = float(value))
                             : void(x.as<double>()[i] = value);
      };
      // From the last to the first: the first of several is reported.
      for (const int64_t i : {70000, 40000, 32768, 32767, 17, 0}) {
        put(i, i % 2 ? std::numeric_limits<double>::quiet_NaN()
                     : -std::numeric_limits<double>::infinity());
        EXPECT_EQ(first_non_finite(bench.context(), x), i);
        EXPECT_FALSE(std::isfinite(squares_of(bench, x)));
      }
    }
  }
}

// An update with AdamW and one with Muon, each of a part of the rows; packed with the updates where
// that is possible, else, or if not `at_once`, afterwards.
std::vector<Output> update_packed(Bench& b, const Shape& shape, bool at_once, bool& packs) {
  const Context& ctx = b.context();
  Operand operand{b.stream("w", shape), {}, {}};
  const int64_t G = operand.groups(), N = operand.n(), K = operand.k();
  const OperandLayout layout = operand_layout(ctx, G, N, K, b.precision().product, true);
  if (layout.forward_numel) operand.forward = b.zeros(layout.dtype, {layout.forward_numel});
  if (layout.backward_numel) operand.backward = b.zeros(layout.dtype, {layout.backward_numel});
  const Shape rows{G * N, K};
  const Tensor w = operand.w.view(rows), g = b.stream("g", rows), m = b.stream("m", rows),
               v = b.stream("v", rows, 1.5);
  const PackedRows first{&operand, 0}, second{&operand, 32};
  packs = at_once && packs_in_update(ctx, first, 32 * K) &&
          packs_in_update(ctx, second, (G * N - 32) * K);
  const AdamWStep step = {
      .lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .step = 3};
  adamw(ctx, {.step = step,
              .g = g.slice(0, 32),
              .w = w.slice(0, 32),
              .m = m.slice(0, 32),
              .v = v.slice(0, 32),
              .packed = packs ? first : PackedRows{}});
  muon_apply(ctx, {.lr = 0.1,
                   .decay = 0.1,
                   .lambda = 0.5,
                   .x = g.slice(32, G * N),
                   .w = w.slice(32, G * N),
                   .packed = packs ? second : PackedRows{}});
  if (!packs) pack(ctx, operand);
  std::vector<Output> outputs{{"w", operand.w}};
  if (operand.forward) outputs.push_back({"forward", operand.forward});
  if (operand.backward) outputs.push_back({"backward", operand.backward});
  return outputs;
}

TEST(Update, PackingWithTheUpdateGivesTheBitsOfPack) {
  for (const Shape& shape : {Shape{64, 96}, Shape{3, 64, 32}, Shape{48, 33}}) {
    int num_packed = 0;
    expect_same_bits(
        fmt::format("N={} K={}", shape[shape.ndim() - 2], shape[shape.ndim() - 1]),
        [&](Bench& b) {
          bool packs;
          std::vector<Output> outputs = update_packed(b, shape, true, packs);
          num_packed += packs;
          return outputs;
        },
        [&](Bench& b) {
          bool packs;
          return update_packed(b, shape, false, packs);
        });
    const bool whole_blocks = shape[shape.ndim() - 1] != 33;
    const bool has_path = supported_isas().back() >= Isa::kAvx512;
    EXPECT_LE(num_packed > 0, whole_blocks);
    EXPECT_GE(num_packed > 0, whole_blocks && has_path);
  }
}

TEST(Update, MetaRecordsBytes) {
  Trace trace;
  trace.start();
  Context meta;
  meta.device = Device::kMeta;
  meta.trace = &trace;
  const Tensor x{nullptr, DType::kF32, Device::kMeta, {1000}};
  const AdamWStep step{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0, .step = 1};
  adamw(meta, {.step = step, .g = x, .w = x, .m = x, .v = x});
  sum_of_squares(meta, x, {nullptr, DType::kF64, Device::kMeta, {1}});
  EXPECT_EQ(first_non_finite(meta, x), -1);
  ASSERT_EQ(calls_of(trace).size(), 3u);
  EXPECT_EQ(calls_of(trace)[0].cost.bytes, 28 * 1000);
  EXPECT_EQ(calls_of(trace)[1].cost.bytes, 4 * 1000);
}

}  // namespace
}  // namespace ashlar::kernels
