// Linear mixers in whole models: gradients against central differences of the loss, recomputation,
// every number type and instruction set against fp64, packed documents.
#include <gtest/gtest.h>

#include "tests/nn/model_checks.h"

namespace ashlar::nn {
namespace {

ModelKeys linear(LinearKind kind) {
  ModelKeys keys = tiny_spec();
  keys.num_hidden_layers = 3, keys.intermediate_size = 6;
  keys.layer_types.assign(3, LayerType::kLinearAttention);
  keys.residual = Residual::kPlain, keys.tie_word_embeddings = false;
  keys.linear.kind = kind;
  keys.linear.num_key_heads = keys.linear.num_value_heads = 2;
  keys.linear.key_head_dim = 12, keys.linear.value_head_dim = 10;
  if (kind == LinearKind::kBasic) keys.linear.map = LinearMap::kElu;
  if (kind == LinearKind::kRetention) keys.linear.map = LinearMap::kSilu;
  if (kind == LinearKind::kGla) keys.linear.conv_taps = 2;
  if (kind == LinearKind::kGatedDelta) keys.linear.num_value_heads = 4, keys.linear.conv_taps = 4;
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
  models.back().linear.causal = false, models.back().linear.num_value_heads = 4;
  return models;
}

std::string name_of(const ModelKeys& keys) {
  return fmt::format("{}{}", kLinearKindNames[size_t(keys.linear.kind)],
                     keys.linear.causal ? "" : " without mask");
}

TEST(Linear, GradientsAreCentralDifferences) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    check_central_differences(keys);
  }
}

TEST(Linear, RecomputationGivesTheSameBits) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    check_recomputation(keys);
  }
}

TEST(Linear, EveryTypeAndInstructionSetComesCloseToFp64) {
  for (ModelKeys keys : all_models()) {
    keys.rms_norm_eps = 0.1;  // so that norms of tiny heads do not make much of bf16's roundings
    SCOPED_TRACE(name_of(keys));
    check_types_and_instruction_sets(keys, 2e-5, 0.2);
  }
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
      EXPECT_EQ(same, keys.linear.causal || t < 6) << t;
    }
  }
}

TEST(Linear, PackedDocumentsAreApart) {
  for (const ModelKeys& keys : all_models()) {
    SCOPED_TRACE(name_of(keys));
    check_documents_are_apart(keys);
  }
}

}  // namespace
}  // namespace ashlar::nn
