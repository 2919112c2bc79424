#include <limits>

#include "ashlar/core/device_spec.h"
#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

constexpr double kLossScale = 0.25;
enum class Gradient { kNone, kInPlace, kBesides };

// Targets -1, the last class and some between.
std::vector<int32_t> some_targets(int64_t t, int64_t V) {
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < t; ++i) targets.push_back(i % 3 == 1 ? -1 : int32_t((i * 7 + V - 1) % V));
  return targets;
}

std::vector<Output> run_cross_entropy(Place& p, int64_t t, int64_t V, Gradient gradient) {
  const Tensor logits = p.random(p.wide(), "logits", {t, V}, 3), loss = p.unset(p.wide(), {t});
  Tensor dlogits;
  if (gradient == Gradient::kBesides) dlogits = p.unset(p.product(), {t, V});
  if (gradient == Gradient::kInPlace) dlogits = logits;
  kernels::cross_entropy(p.context(), {.logits_tV = logits,
                                       .targets_t = p.ints(some_targets(t, V)),
                                       .scale = kLossScale,
                                       .loss_t = loss,
                                       .dlogits_tV = dlogits});
  if (!dlogits) return {{"loss", loss}};
  return {{"loss", loss}, {"dlogits", dlogits}};
}

TEST(GpuCrossEntropy, MatchesTheReferenceInEveryMode) {
  // Less than a pack, packs that end in the middle, one pack a thread, and more.
  for (const int64_t V : {1, 13, 257, 4096, 9001})
    for (const DType product : {DType::kF32, DType::kBF16})
      for (const auto& [gradient, name] : {std::pair(Gradient::kNone, "loss"),
                                           {Gradient::kInPlace, "in_place"},
                                           {Gradient::kBesides, "besides"}}) {
        if (product == DType::kBF16 && gradient != Gradient::kBesides) continue;
        expect_op(fmt::format("cross_entropy/{}/{}/{}", V, name_of(product), name),
                  {DType::kF32, product},
                  [&](Place& p) { return run_cross_entropy(p, 4, V, gradient); });
      }
}

TEST(GpuCrossEntropy, ExtremeLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const int64_t V = 5000;
  const Tensor logits = p.zeros(DType::kF32, {4, V}), loss = p.unset(DType::kF32, {4});
  const Tensor gradient = p.unset(DType::kF32, {4, V});
  p.edit<float>(logits, [&](float* x) {
    std::fill_n(x, V, -kInfinity);  // one class is left
    x[3000] = 5.0f;
    x[V + 17] = 1000.0f;         // far above the rest
    x[2 * V + 3999] = -1000.0f;  // far below
    x[3 * V + 10] = NAN;
  });
  kernels::cross_entropy(p.context(), {.logits_tV = logits,
                                       .targets_t = p.ints({3000, 17, 3999, 0}),
                                       .loss_t = loss,
                                       .dlogits_tV = gradient});
  const std::vector<double> losses = values_of(loss), dlogits = values_of(gradient);
  EXPECT_EQ(losses[0], 0);
  EXPECT_EQ(losses[1], 0);
  EXPECT_NEAR(losses[2], 1000.0 + std::log(4999.0), 1e-3);
  EXPECT_TRUE(std::isnan(losses[3]));
  for (size_t i = 0; i < size_t(3 * V); ++i) ASSERT_TRUE(std::isfinite(dlogits[i])) << i;
  EXPECT_EQ(dlogits[0], 0);
  EXPECT_EQ(dlogits[3000], 0);
  EXPECT_EQ(dlogits[2 * size_t(V) + 3999], -1);
  EXPECT_TRUE(std::isnan(dlogits[3 * size_t(V) + 1]));
}

// A chunk's product for the head's gradient takes longer than the bytes of the gradient, which is
// read and written once a chunk.
TEST(GpuCrossEntropy, ChunksAreLongEnoughOnEveryCard) {
  Bench bench({DType::kF32, DType::kBF16}, true, 1, Device::kMeta);
  Place p(gpu::kOps, bench);
  for (const DeviceSpec& card : known_devices())
    for (const double classes : {32000.0, 262272.0}) {
      const double width = 2048, rows = double(most_logits_rows(p.context(), int64_t(classes)));
      EXPECT_GT(2 * rows * classes * width / card.bf16_flops,
                2 * 4 * classes * width / card.bytes_a_second)
          << card.name;
    }
}

TEST(GpuCrossEntropy, OfNoTokenDoesNothing) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  EXPECT_EQ(run_cross_entropy(p, 0, 5, Gradient::kBesides).size(), 2u);
}

}  // namespace
}  // namespace ashlar::kernels
