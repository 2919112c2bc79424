#include "ashlar/kernels/cross_entropy.h"

#include <limits>

#include "ashlar/kernels/cpu/cross_entropy_args.h"
#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

constexpr double kScale = 0.25;

// Targets -1, 0, the last class and some between.
std::vector<int32_t> some_targets(int64_t t, int64_t V) {
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < t; ++i) targets.push_back(i % 3 == 1 ? -1 : int32_t((i * 7 + V - 1) % V));
  return targets;
}

TEST(CrossEntropy, ReferenceIsTheFormula) {
  Bench bench;
  const int64_t t = 5, V = 11;
  const Tensor logits = bench.stream("logits", {t, V}), loss = bench.stream({t});
  const Tensor gradient = bench.stream({t, V});
  const std::vector<int32_t> targets = some_targets(t, V);
  cross_entropy(bench.context(), {.logits_tV = logits,
                                  .targets_t = bench.ints(targets),
                                  .scale = kScale,
                                  .loss_t = loss,
                                  .dlogits_tV = gradient});
  for (int64_t i = 0; i < t; ++i) {
    const double* x = logits.as<double>() + i * V;
    double sum = 0;
    for (int64_t c = 0; c < V; ++c) sum += std::exp(x[c]);
    const bool counts = targets[size_t(i)] >= 0;
    const double want = counts ? -std::log(std::exp(x[targets[size_t(i)]]) / sum) : 0.0;
    EXPECT_NEAR(loss.as<double>()[i], want, 1e-14);
    for (int64_t c = 0; c < V; ++c) {
      const double p = std::exp(x[c]) / sum - (c == targets[size_t(i)] ? 1.0 : 0.0);
      EXPECT_NEAR(gradient.as<double>()[i * V + c], counts ? p * kScale : 0.0, 1e-15);
    }
  }
}

TEST(CrossEntropy, GradientIsThatOfFiniteDifferences) {
  Bench bench;
  const int64_t t = 4, V = 7;
  const Tensor logits = bench.stream("logits", {t, V}), loss = bench.stream({t});
  const Tensor gradient = bench.stream({t, V}), targets = bench.ints(some_targets(t, V));
  cross_entropy(
      bench.context(),
      {.logits_tV = logits, .targets_t = targets, .loss_t = loss, .dlogits_tV = gradient});
  expect_gradient("logits", logits, values_of(gradient), [&] {
    cross_entropy(bench.context(), {.logits_tV = logits, .targets_t = targets, .loss_t = loss});
    double sum = 0;
    for (const double x : values_of(loss)) sum += x;
    return sum;
  });
}

TEST(CrossEntropy, EveryPathAgreesWithTheReference) {
  for (const int64_t V : {1, 2, 15, 16, 33, 257, 2048, 5001}) {
    for (const int64_t t : {1, 7}) {
      expect_paths_agree(fmt::format("t {} V {}", t, V), [&](Bench& bench) {
        const Tensor logits = bench.stream("logits", {t, V}, 3.0), loss = bench.stream({t});
        const Tensor gradient = bench.product({t, V}), targets = bench.ints(some_targets(t, V));
        cross_entropy(bench.context(), {.logits_tV = logits,
                                        .targets_t = targets,
                                        .scale = kScale,
                                        .loss_t = loss,
                                        .dlogits_tV = gradient});
        return std::vector<Output>{{"loss", loss}, {"gradient", gradient}};
      });
    }
  }
}

TEST(CrossEntropy, GradientMayTakeThePlaceOfTheLogits) {
  const int64_t t = 3, V = 2100;
  for (const bool reference : {true, false}) {
    Bench bench({DType::kF32, DType::kF32}, reference);
    const Tensor logits = bench.stream("logits", {t, V}), targets = bench.ints({5, -1, 2099});
    const Tensor loss = bench.stream({t}), gradient = bench.stream({t, V}),
                 again = bench.stream({t});
    cross_entropy(bench.context(), {.logits_tV = logits,
                                    .targets_t = targets,
                                    .scale = kScale,
                                    .loss_t = loss,
                                    .dlogits_tV = gradient});
    cross_entropy(bench.context(), {.logits_tV = logits,
                                    .targets_t = targets,
                                    .scale = kScale,
                                    .loss_t = again,
                                    .dlogits_tV = logits});
    EXPECT_EQ(values_of(loss), values_of(again));
    EXPECT_EQ(values_of(gradient), values_of(logits));
  }
}

TEST(CrossEntropy, ExtremeLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    Bench bench({DType::kF32, DType::kF32}, false);
    const int64_t V = 4000;
    const Tensor logits = bench.stream({4, V}), loss = bench.stream({4}),
                 gradient = bench.stream({4, V});
    float* x = logits.as<float>();
    std::fill_n(x, V, -kInfinity);  // one class is left, beyond the first chunk
    x[3000] = 5.0f;
    x[V + 17] = 1000.0f;         // far above the rest
    x[2 * V + 3999] = -1000.0f;  // far below
    x[3 * V + 10] = NAN;
    cross_entropy(bench.context(), {.logits_tV = logits,
                                    .targets_t = bench.ints({3000, 17, 3999, 0}),
                                    .loss_t = loss,
                                    .dlogits_tV = gradient});
    EXPECT_FLOAT_EQ(loss.as<float>()[0], 0.0f);
    EXPECT_FLOAT_EQ(loss.as<float>()[1], 0.0f);
    EXPECT_NEAR(loss.as<float>()[2], 1000.0 + std::log(3999.0), 1e-3);
    EXPECT_TRUE(std::isnan(loss.as<float>()[3]));
    for (int64_t i = 0; i < 3 * V; ++i) ASSERT_TRUE(std::isfinite(gradient.as<float>()[i])) << i;
    EXPECT_EQ(gradient.as<float>()[0], 0.0f);
    EXPECT_FLOAT_EQ(gradient.as<float>()[2 * V + 3999], -1.0f);
    EXPECT_TRUE(std::isnan(gradient.as<float>()[3 * V + 1]));
  }
  select_isa(supported_isas().back());
}

TEST(CrossEntropyDeathTest, TargetOutsideTheVocabularyAborts) {
  Bench bench;
  const Tensor logits = bench.stream({2, 5}), loss = bench.stream({2});
  for (const int32_t bad : {5, -2})
    EXPECT_DEATH(
        cross_entropy(bench.context(),
                      {.logits_tV = logits, .targets_t = bench.ints({0, bad}), .loss_t = loss}),
        "target >= -1 && target < V");
}

TEST(CrossEntropy, ExpApproxKeepsItsStatedError) {
  std::vector<float> x, y;
  for (double v = -87.29; v < 88.0; v += 0.000731) x.push_back(float(v));
  y.resize(x.size());
  for (const Isa path : supported_isas()) {
    select_isa(path);
    cpu::exp_fast(x.data(), int64_t(x.size()), y.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(double(x[i]));
      worst = std::max(worst, std::abs(y[i] - want) / want);
    }
    EXPECT_LE(worst, 2.5e-7) << name_of(path);
    const float special[] = {0.0f, -0.0f, -87.4f, -1e30f, -std::numeric_limits<float>::infinity(),
                             NAN};
    float result[6];
    cpu::exp_fast(special, 6, result);
    EXPECT_EQ(result[0], 1.0f);
    EXPECT_EQ(result[1], 1.0f);
    for (int i = 2; i < 5; ++i) EXPECT_EQ(result[i], 0.0f) << special[i];
    EXPECT_TRUE(std::isnan(result[5]));
  }
  select_isa(supported_isas().back());
}

TEST(CrossEntropy, MetaRecordsItsCost) {
  Trace trace;
  trace.start();
  Context meta;
  meta.device = Device::kMeta;
  meta.trace = &trace;
  const auto absent = [](DType dtype, const Shape& shape) {
    return Tensor{nullptr, dtype, Device::kMeta, shape};
  };
  cross_entropy(meta, {.logits_tV = absent(DType::kF32, {8, 100}),
                       .targets_t = absent(DType::kI32, {8}),
                       .loss_t = absent(DType::kF32, {8}),
                       .dlogits_tV = absent(DType::kBF16, {8, 100})});
  ASSERT_EQ(calls_of(trace).size(), 1u);
  EXPECT_EQ(calls_of(trace)[0].cost.flop, 6 * 8 * 100);
  EXPECT_EQ(calls_of(trace)[0].cost.bytes, 8 * 100 * (4 + 4 + 2));
}

}  // namespace
}  // namespace ashlar::kernels
