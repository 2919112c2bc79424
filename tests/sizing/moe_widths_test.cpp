// Shapes of mixtures: the front against brute force, and ZAYA1's choice on the node it trained on.
#include "ashlar/sizing/moe_widths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>

#include "ashlar/core/error.h"
#include "ashlar/sizing/model.h"

namespace ashlar::sizing {
namespace {

StepShape base_of(const std::string& recipe) {
  const Recipe read =
      load_recipe(std::string(ASHLAR_FIXTURES) + "/../../recipes/" + recipe + ".toml", {});
  return step_shape(read, resolve_parallel(read, 1), true);
}

MoeTarget target_of(const char* name) {
  const machine::Profile profile = machine::parse_profile(machine::shipped_text(name), name);
  return {MachineRates(profile, {}, 1, true), int64_t(profile.need("device.compute_units").value),
          5e-6};
}

TEST(MoeWidths, ShapesAndFrontAreThoseOfBruteForce) {
  const StepShape base = base_of("moe-nano");
  const MoeTarget h100 = target_of("h100");
  MoeWidthsOptions options;
  options.least_blocks = 5, options.most_blocks = 9;
  options.tolerance = 0.05;
  options.chosen = {1, 2, 4};
  const std::vector<MoeChoice> found = moe_widths(base, h100, {h100}, options);

  // Every shape whose parameters are near enough, without solving for anything.
  const ModelParameters own = model_parameters(base.model);
  std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> all, got;
  for (const int64_t k : options.chosen)
    for (int64_t L = 5; L <= 9; ++L)
      for (int64_t E = 4; E <= 64; E += 4)
        for (int64_t I = 64; I <= 4096; I += 64) {
          const ModelParameters p = model_parameters(with_shape(base.model, {E, k, L, I}));
          const double total = double(p.total) / double(own.total);
          const double active = double(p.active + p.embedding) / double(own.active + own.embedding);
          if (std::abs(total - 1) <= 0.05 && std::abs(active - 1) <= 0.05) all.insert({E, k, L, I});
        }
  for (const MoeChoice& c : found)
    got.insert({c.shape.experts, c.shape.chosen, c.shape.blocks, c.shape.width});
  EXPECT_GT(all.size(), 3);
  EXPECT_EQ(got, all);

  for (const MoeChoice& a : found) {
    const bool beaten = std::any_of(found.begin(), found.end(), [&](const MoeChoice& b) {
      return b.train_s <= a.train_s && b.generate_s[0] <= a.generate_s[0] &&
             (b.train_s < a.train_s || b.generate_s[0] < a.generate_s[0]);
    });
    EXPECT_EQ(a.on_front[0], !beaten) << a.shape.experts << " " << a.shape.width;
  }
}

// 2.581 GB of active weights in bf16 at 4.33 TB/s.
TEST(MoeWidths, GenerationOfZaya1ReadsItsActiveWeights) {
  MoeTarget mi300x = target_of("mi300x-pollara");
  mi300x.launch_s = 0;
  MoeWidthsOptions options;
  options.least_blocks = options.most_blocks = 40;
  const std::vector<MoeChoice> found = moe_widths(base_of("zaya1-8b"), mi300x, {mi300x}, options);
  EXPECT_NEAR(found.front().generate_s[0] * 1e3, 0.596, 5e-4);
  EXPECT_EQ(found.front().shape, (MixtureShape{16, 1, 40, 2048}));
}

// Fewer blocks of more and narrower experts train up to 13 % faster by these laws.
TEST(MoeWidths, ZayaIsNearTheFrontOfTheNodeItTrainedOn) {
  const MoeTarget mi300x = target_of("mi300x-pollara");
  const std::vector<MoeChoice> found =
      moe_widths(base_of("zaya1-8b"), mi300x, {mi300x}, MoeWidthsOptions{});
  const MoeChoice& own = found.front();
  for (const MoeChoice& c : found) {
    if (!c.on_front[0] || c.generate_s[0] > own.generate_s[0]) continue;
    EXPECT_GT(c.train_s, 0.85 * own.train_s) << c.shape.experts << " " << c.shape.width;
  }
}

TEST(MoeWidths, ModelsWithoutMixturesAreRefused) {
  EXPECT_THROW(shape_of(base_of("llama-nano").model), Error);
}

}  // namespace
}  // namespace ashlar::sizing
