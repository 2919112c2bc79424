// Dense blocks, and blocks of several kinds in one model: gradients against central differences of
// the loss, and every number type and instruction set against fp64.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/kernels/isa.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

// Grouped queries, windows, partial rotation, scaled RoPE, norms and a head of its own.
ModelKeys mixed() {
  ModelKeys keys = tiny_spec();
  keys.layer_types = {{AttentionSpec::kKind, MlpSpec::kKind, true},
                      {CcaSpec::kKind, MlpSpec::kKind},
                      {AttentionSpec::kKind, MoeSpec::kKind},
                      {AttentionSpec::kKind, MlpSpec::kKind},
                      {CcaSpec::kKind, MoeSpec::kKind, true}};
  keys.num_hidden_layers = 5, keys.intermediate_size = 6;
  keys.qk_norm = QkNorm::kRms, keys.residual = Residual::kPlain, keys.tie_word_embeddings = false;
  keys.rope_original_positions = 4, keys.rope_factor = 4, keys.qk_norm_eps = 1e-12;
  return keys;
}

ModelKeys llama() {
  ModelKeys keys = mixed();
  keys.layer_types.assign(5, LayerType::kFullAttention);
  keys.qk_norm = QkNorm::kNone, keys.partial_rotary_factor = 1.0;
  keys.rope_original_positions = 0;
  return keys;
}

Batch packed() {
  return batch_of({{5, 1, 6}, {12}}, 11);
}

double loss_of(TinyRank& rank, const Batch& batch) {
  rank.model.weights_changed();
  const parallel::LossSum losses = rank.model.evaluate(batch.view());
  return losses.sum / 24.0;  // as gradients are: over all tokens
}

void check_gradients(const ModelKeys& keys) {
  const Batch batch = packed();
  TinyRank rank(recipe_of(keys, 2, 12));
  rank.step(batch);
  expect_central_differences(rank, whole_gradients(rank.model),
                             [&] { return loss_of(rank, batch); });
}

TEST(Dense, GradientsAreCentralDifferences) {
  check_gradients(llama());
}

TEST(Dense, GradientsOfBlocksOfEveryKindAreCentralDifferences) {
  check_gradients(mixed());
}

TEST(Dense, RecomputationGivesTheSameBits) {
  for (const ModelKeys& keys : {llama(), mixed()}) {
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

TEST(Dense, EveryTypeAndInstructionSetComesCloseToFp64) {
  const kernels::Isa used = kernels::isa();
  TinyRank exact(recipe_of(llama(), 2, 12));
  const double loss = exact.step(packed()).sum;
  const Whole gradients = whole_gradients(exact.model);
  for (const kernels::Isa isa : kernels::supported_isas()) {
    kernels::select_isa(isa);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const double tolerance = compute == DType::kF32 ? 1e-5 : 5e-2;
      TinyRank rank(recipe_of(llama(), 2, 12), {.compute = compute});
      EXPECT_NEAR(rank.step(packed()).sum, loss, tolerance * loss) << name_of(isa);
      EXPECT_LT(distance(gradients, whole_gradients(rank.model)), tolerance) << name_of(isa);
    }
  }
  kernels::select_isa(used);
}

// A document's tokens see nothing of the others, in blocks of any kind.
TEST(Dense, PackedDocumentsAreApart) {
  for (const ModelKeys& keys : {llama(), mixed()}) {
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
