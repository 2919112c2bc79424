// Linear mixers in whole models: gradients against central differences of the loss, recomputation,
// every number type and instruction set against fp64, packed documents.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/kernels/isa.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

ModelKeys linear(LinearKind kind) {
  ModelKeys keys = tiny_spec();
  keys.num_hidden_layers = 3, keys.intermediate_size = 6;
  keys.layer_types.assign(3, LayerType::kLinearAttention);
  keys.residual = Residual::kPlain, keys.tie_word_embeddings = false;
  keys.linear_recurrence = kind;
  keys.linear_num_key_heads = keys.linear_num_value_heads = 2;
  keys.linear_key_head_dim = 12, keys.linear_value_head_dim = 10;
  if (kind == LinearKind::kBasic) keys.linear_feature_map = LinearMap::kElu;
  if (kind == LinearKind::kRetention) keys.linear_feature_map = LinearMap::kSilu;
  if (kind == LinearKind::kGla) keys.linear_conv_kernel_dim = 2;
  if (kind == LinearKind::kGatedDelta)
    keys.linear_num_value_heads = 4, keys.linear_conv_kernel_dim = 4;
  return keys;
}

// Beside attention, mixtures and a convolution of CCA's own.
ModelKeys hybrid() {
  ModelKeys keys = linear(LinearKind::kGatedDelta);
  keys.layer_types = {{LinearSpec::kKind, MoeSpec::kKind},
                      {AttentionSpec::kKind, MlpSpec::kKind, true},
                      {LinearSpec::kKind, MlpSpec::kKind},
                      {CcaSpec::kKind, MoeSpec::kKind}};
  keys.num_hidden_layers = 4;
  keys.qk_norm_eps = 1e-12;
  return keys;
}

std::vector<ModelKeys> all_models() {
  std::vector<ModelKeys> models = {hybrid()};
  for (const auto kind : {LinearKind::kBasic, LinearKind::kLightning, LinearKind::kRetention,
                          LinearKind::kGla, LinearKind::kGatedDelta})
    models.push_back(linear(kind));
  models.push_back(linear(LinearKind::kBasic));
  models.back().linear_causal = false, models.back().linear_num_value_heads = 4;
  return models;
}

std::string name_of(const ModelKeys& keys) {
  return fmt::format("{}{}", kLinearKindNames[size_t(keys.linear_recurrence)],
                     keys.linear_causal ? "" : " without mask");
}

Batch packed() {
  return batch_of({{5, 1, 6}, {12}}, 11);
}

double loss_of(TinyRank& rank, const Batch& batch) {
  rank.model.weights_changed();
  const parallel::LossSum losses = rank.model.evaluate(batch.view());
  return losses.sum / 24.0;  // as gradients are: over all tokens
}

TEST(Linear, GradientsAreCentralDifferences) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    const Batch batch = packed();
    TinyRank rank(recipe_of(keys, 2, 12));
    rank.step(batch);
    expect_central_differences(rank, whole_gradients(rank.model),
                               [&] { return loss_of(rank, batch); });
  }
}

TEST(Linear, RecomputationGivesTheSameBits) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    Recipe recipe = recipe_of(keys, 2, 12);
    TinyRank kept(recipe, {.compute = DType::kF32});
    recipe.train.recompute = true;
    TinyRank again(recipe, {.compute = DType::kF32});
    const parallel::LossSum losses = kept.step(packed());
    EXPECT_EQ(losses.sum, again.step(packed()).sum);
    EXPECT_TRUE(whole_gradients(kept.model) == whole_gradients(again.model));
    EXPECT_LT(again.memory().tags[size_t(Tag::kSaved)].peak_bytes,
              kept.memory().tags[size_t(Tag::kSaved)].peak_bytes);
  }
}

// The relative distance of all gradients, in the norm.
double distance(const Whole& a, const Whole& b) {
  double difference = 0.0, size = 0.0;
  for (const auto& [name, values] : a)
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - b.at(name)[i], 2);
      size += values[i] * values[i];
    }
  return std::sqrt(difference / size);
}

TEST(Linear, EveryTypeAndInstructionSetComesCloseToFp64) {
  const kernels::Isa used = kernels::isa();
  for (ModelKeys keys : all_models()) {
    keys.rms_norm_eps = 0.1;  // so that norms of tiny heads do not make much of bf16's roundings
    SCOPED_TRACE(name_of(keys));
    TinyRank exact(recipe_of(keys, 2, 12));
    const double loss = exact.step(packed()).sum;
    const Whole gradients = whole_gradients(exact.model);
    for (const kernels::Isa isa : kernels::supported_isas()) {
      kernels::select_isa(isa);
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        const double tolerance = compute == DType::kF32 ? 2e-5 : 0.2;
        TinyRank rank(recipe_of(keys, 2, 12), {.compute = compute});
        EXPECT_NEAR(rank.step(packed()).sum, loss, tolerance * loss) << name_of(isa);
        EXPECT_LT(distance(gradients, whole_gradients(rank.model)), tolerance) << name_of(isa);
      }
    }
  }
  kernels::select_isa(used);
}

// A token changes the logits of those before it in its document only without mask.
TEST(Linear, TokensSeeNoneBehindThemUnlessWithoutMask) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    TinyRank rank(recipe_of(keys, 2, 12));
    Batch batch = packed();
    rank.step(batch);
    const std::vector<double> before = rank.logits();
    batch.ids[11] = batch.ids[11] == 3 ? 4 : 3;  // the last token of the first row
    rank.model.evaluate(batch.view());
    const std::vector<double> after = rank.logits();
    for (size_t t = 0; t < 11; ++t) {
      const bool same = std::equal(&before[t * 11], &before[(t + 1) * 11], &after[t * 11]);
      EXPECT_EQ(same, keys.linear_causal || t < 6) << t;
    }
  }
}

// A document's tokens see nothing of the others.
TEST(Linear, PackedDocumentsAreApart) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    TinyRank packed_rank(recipe_of(keys, 2, 12)), alone(recipe_of(keys, 1, 6));
    Batch batch = packed();
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

}  // namespace
}  // namespace ashlar::nn
