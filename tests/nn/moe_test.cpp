// Mixtures of experts with a linear router, and blocks of several kinds in one model: gradients
// against central differences of what is trained, and every number type against fp64.
#include "ashlar/nn/moe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/kernels/isa.h"
#include "ashlar/nn/linear_router.h"
#include "ashlar/sizing/model.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

constexpr int64_t kTokens = 24;

ModelKeys mixtral() {
  ModelKeys keys = tiny_spec();
  keys.layer_types.assign(3, {AttentionSpec::kKind, MoeSpec::kKind});
  keys.num_hidden_layers = 3, keys.num_experts = 5, keys.linear_router.num_chosen = 2;
  keys.router = RouterKind::kLinear, keys.router_hidden_size = 0;
  keys.residual = Residual::kPlain, keys.partial_rotary_factor = 1.0;
  keys.tie_word_embeddings = false;
  return keys;
}

// The first block dense, weights that do not add up to 1, three of five experts.
ModelKeys qwen3() {
  ModelKeys keys = mixtral();
  keys.layer_types[0].feed_forward = MlpSpec::kKind, keys.intermediate_size = 6;
  keys.qk_norm = QkNorm::kRms, keys.linear_router.num_chosen = 3,
  keys.linear_router.renormalize = false;
  keys.linear_router.scale = 1.5;
  return keys;
}

// A gated shared expert, softmax after the choice, biases, residuals scaled by vectors.
ModelKeys shared() {
  ModelKeys keys = mixtral();
  keys.linear_router.pre_softmax = false, keys.linear_router.expert_bias = true;
  keys.shared_expert_intermediate_size = 7, keys.shared_expert_gate = true;
  keys.residual = Residual::kScaled;
  return keys;
}

// An ungated shared expert beside CCA and a window.
ModelKeys ungated() {
  ModelKeys keys = shared();
  keys.shared_expert_gate = false, keys.linear_router.num_chosen = 5,
  keys.linear_router.pre_softmax = true;
  keys.layer_types[1] = {CcaSpec::kKind, MoeSpec::kKind, true}, keys.qk_norm_eps = 1e-12;
  keys.partial_rotary_factor = 0.5;
  return keys;
}

std::vector<ModelKeys> models() {
  return {mixtral(), qwen3(), shared(), ungated()};
}

Recipe recipe_of_moe(const ModelKeys& keys, bool losses) {
  Recipe recipe = recipe_of(keys, 2, 12);
  if (losses) recipe.balance.aux_loss_coef = 0.03, recipe.balance.z_loss_coef = 0.02;
  return recipe;
}

Batch packed() {
  return batch_of({{5, 1, 6}, {12}}, 11);
}

// The loss whose gradients are tested: the mean over all tokens, and the routers' losses.
double trained_loss(TinyRank& rank, const Batch& batch) {
  rank.model.weights_changed();
  const parallel::LossSum losses = rank.step(batch);
  return losses.sum / double(kTokens) + losses.aux_loss + losses.z_loss;
}

void check_gradients(const ModelKeys& keys, bool with_losses) {
  const Batch batch = packed();
  TinyRank rank(recipe_of_moe(keys, with_losses));
  const parallel::LossSum losses = rank.step(batch);
  EXPECT_EQ(losses.aux_loss > 0.0 && losses.z_loss > 0.0, with_losses);
  expect_central_differences(rank, whole_gradients(rank.model),
                             [&] { return trained_loss(rank, batch); });
}

TEST(MoeModel, GradientsAreCentralDifferences) {
  for (const ModelKeys& keys : models()) check_gradients(keys, false);
}

TEST(MoeModel, GradientsWithTheRoutersLossesAreCentralDifferences) {
  for (const ModelKeys& keys : models()) check_gradients(keys, true);
}

const MoeBranch& moe_of(const TinyRank& rank, size_t block) {
  return dynamic_cast<const MoeBranch&>(*rank.model.local().weights().blocks[block].feed_forward);
}

TEST(MoeModel, HasTheParametersOfTheClosedFormula) {
  for (const ModelKeys& keys : models()) {
    const TinyRank rank(recipe_of_moe(keys, false));
    const ModelParameters formula = model_parameters(model_of(keys));
    EXPECT_EQ(rank.model.local().num_parameters(), formula.total);
    int64_t buffers = 0;
    for (const Piece& bias : rank.model.buffers()) buffers += bias.data.numel();
    EXPECT_EQ(formula.buffers, buffers);
    // A token leaves out all experts but k.
    int64_t left_out = 0;
    for (const BlockSpec& block : model_of(keys).blocks)
      if (const auto* moe = std::get_if<MoeSpec>(&block.feed_forward))
        left_out +=
            (moe->num_experts - moe->experts_of_token()) * 3 * keys.hidden_size * moe->width;
    EXPECT_EQ(formula.active, formula.without_embedding - left_out);
  }
}

// The two losses once more, from what the router kept: by row, over its tokens.
TEST(MoeModel, RouterLossesAreTheirFormulas) {
  TinyRank rank(recipe_of_moe(mixtral(), true));
  const parallel::LossSum losses = rank.step(packed());
  const auto& router = rank.model.local().weights();
  double balance = 0.0, z = 0.0;
  const int64_t rows = 2, length = 12, E = 5, k = 2;
  for (size_t block = 0; block < 3; ++block) {
    const auto load = router.blocks[block].feed_forward->load(0);
    const auto& linear = dynamic_cast<const LinearRouter&>(moe_of(rank, block).router());
    const LinearRouterSaved& saved = linear.saved(0);
    const auto experts = load->expert_Tk.span<const int32_t>();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t e = 0; e < E; ++e) {
        double choices = 0.0, mean = 0.0;
        for (int64_t t = row * length; t < (row + 1) * length; ++t) {
          for (int64_t j = 0; j < k; ++j) choices += experts[size_t(t * k + j)] == e;
          mean += get(saved.p, t * E + e) / double(length);
        }
        balance += 0.03 * double(E) * choices / double(length) * mean / double(rows);
      }
    for (int64_t t = 0; t < rows * length; ++t)
      z += 0.02 * std::pow(get(saved.lse, t), 2) / double(rows * length);
  }
  EXPECT_NEAR(losses.aux_loss, balance, 1e-13);
  EXPECT_NEAR(losses.z_loss, z, 1e-13);
}

// Loads that are even give the coefficient times k for each mixture, as load_balancing_loss_func of
// transformers does.
TEST(MoeModel, EvenLoadsGiveTheCoefficientTimesK) {
  ModelKeys keys = mixtral();
  keys.linear_router.num_chosen = keys.num_experts;  // each token takes all
  TinyRank rank(recipe_of_moe(keys, true));
  EXPECT_NEAR(rank.step(packed()).aux_loss, 3 * 5 * 0.03, 1e-12);
}

TEST(MoeModel, RecomputationGivesTheSameBits) {
  for (const ModelKeys& keys : models()) {
    Recipe recipe = recipe_of_moe(keys, true);
    TinyRank kept(recipe, {.compute = DType::kF32});
    recipe.train.recompute = true;
    TinyRank again(recipe, {.compute = DType::kF32});
    const parallel::LossSum losses = kept.step(packed()), recomputed = again.step(packed());
    EXPECT_EQ(losses.sum, recomputed.sum);
    EXPECT_EQ(losses.aux_loss, recomputed.aux_loss);
    EXPECT_EQ(losses.z_loss, recomputed.z_loss);
    EXPECT_TRUE(whole_gradients(kept.model) == whole_gradients(again.model));
    EXPECT_LT(again.memory().tags[size_t(Tag::kSaved)].peak_bytes,
              kept.memory().tags[size_t(Tag::kSaved)].peak_bytes);
  }
}

double distance(const Whole& a, const Whole& b) {
  double difference = 0.0, size = 0.0;
  for (const auto& [name, values] : a)
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - b.at(name)[i], 2);
      size += values[i] * values[i];
    }
  return std::sqrt(difference / size);
}

TEST(MoeModel, EveryTypeAndInstructionSetComesCloseToFp64) {
  const kernels::Isa used = kernels::isa();
  for (const ModelKeys& keys : models()) {
    TinyRank exact(recipe_of_moe(keys, true));
    const double loss = exact.step(packed()).sum;
    const Whole gradients = whole_gradients(exact.model);
    for (const kernels::Isa isa : kernels::supported_isas()) {
      kernels::select_isa(isa);
      TinyRank rank(recipe_of_moe(keys, true), {.compute = DType::kF32});
      EXPECT_NEAR(rank.step(packed()).sum, loss, 1e-5 * loss) << name_of(isa);
      EXPECT_LT(distance(gradients, whole_gradients(rank.model)), 1e-4) << name_of(isa);
      // Rounded to bf16 a router may choose otherwise: only the loss is near.
      TinyRank rounded(recipe_of_moe(keys, true), {.compute = DType::kBF16});
      EXPECT_NEAR(rounded.step(packed()).sum, loss, 5e-2 * loss) << name_of(isa);
    }
    kernels::select_isa(used);
  }
}

// A document's tokens see nothing of the others.
TEST(MoeModel, PackedDocumentsAreApart) {
  for (const ModelKeys& keys : models()) {
    TinyRank packed_rank(recipe_of(keys, 2, 12)), alone(recipe_of(keys, 1, 6));
    const Batch batch = packed();
    packed_rank.step(batch);
    const std::vector<double> together = packed_rank.logits();
    const Batch last{{batch.ids.begin() + 6, batch.ids.begin() + 12},
                     std::vector<int32_t>(6, -1),
                     {{0, 6, 0, 0}}};
    alone.step(last);
    const std::vector<double> apart = alone.logits();
    for (size_t i = 0; i < apart.size(); ++i)
      EXPECT_NEAR(apart[i], together[6 * 11 + i], 1e-12) << i;
  }
}

// Biases choose and weigh nothing: with one that is far above the others every token takes that
// expert, and experts without tokens have no gradient.
TEST(MoeModel, BiasesChooseAndExpertsMayHaveNoToken) {
  ModelKeys keys = shared();
  keys.linear_router.num_chosen = 1;
  TinyRank rank(recipe_of_moe(keys, false));
  for (const Piece& bias : rank.model.buffers()) set(bias.data, 3, 100.0);
  rank.step(packed());
  for (const Tensor& loads : rank.model.step_loads()) {
    const auto counts = loads.span<const int64_t>();
    EXPECT_EQ(std::vector(counts.begin(), counts.end()),
              (std::vector<int64_t>{0, 0, 0, kTokens, 0, 0}));
  }
  const Whole gradients = whole_gradients(rank.model);
  const std::vector<double>& down = gradients.at("model.layers.1.mlp.experts.down_proj");
  const size_t one = down.size() / 5;
  for (size_t e = 0; e < 5; ++e) {
    double squares = 0.0;
    for (size_t i = e * one; i < (e + 1) * one; ++i) squares += down[i] * down[i];
    EXPECT_EQ(squares > 0.0, e == 3) << e;
  }
}

}  // namespace
}  // namespace ashlar::nn
